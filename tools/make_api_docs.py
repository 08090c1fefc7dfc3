"""Write docs/reference/api.md and settings.md from signatures and docstrings.

Run: .venv/bin/python tools/make_api_docs.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
API = ROOT / "docs" / "reference" / "api.md"
SETTINGS = ROOT / "docs" / "reference" / "settings.md"
_LINE = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)
_WIDTH = 100
_PARTS = ("Args", "Returns", "Raises", "Example", "Examples")

_SECTIONS = [
    ("Pipelines", "Declare, run, look.", ["Pipeline", "Settings", "RunSummary", "EpochReport"]),
    ("Streams", "What sources and operators return.", ["Stream", "read_changelog"]),
    ("Windows and intervals", "Keys and bounds of event time.", None),
    ("Aggregate functions", "For `agg`.", None),
]
_API_HEAD = """\
Made from signatures and docstrings by `python tools/make_api_docs.py`; a test compares.
`import holdfast as hf` offers these names; their examples run as tests. How they work together:
[the guide](../guides/pipelines.md). Settings have [a page of their own](settings.md). Below
`hf.checkpoint`, `hf.state`, `hf.journal`, `hf.guard`, `hf.testing` and `hf.errors`
lie the parts that need no Spark."""
_SETTINGS_HEAD = """\
Made from `src/holdfast/settings.py` by `python tools/make_api_docs.py`; a test compares.
`hf.Settings(retain=5)` is given to `hf.Pipeline` or `hf.checkpoint.open_store`."""
_OTHERS = ["holdfast.api.grouped.Grouped", "holdfast.api.view.View"]


def _public() -> dict[str, str]:
    stub = (ROOT / "src" / "holdfast" / "__init__.pyi").read_text(encoding="utf-8")
    return {name: module for module, name in _LINE.findall(stub)}


def _signature(function: Any, name: str) -> str:
    """The head of a function as its source has it, without `self`."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    given = node.args
    if given.args and given.args[0].arg in ("self", "cls"):
        given.args = given.args[1:]
    made = node.name == "__init__"
    returns = "" if node.returns is None or made else f" -> {_text(node.returns)}"
    short = f"{name}({', '.join(_parameters(given))}){returns}"
    if len(short) <= _WIDTH:
        return short
    lines = ",\n    ".join(_parameters(given))
    return f"{name}(\n    {lines},\n){returns}"


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _parameters(given: ast.arguments) -> Iterator[str]:
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    for argument, default in zip(plain, defaults, strict=True):
        yield _parameter(argument, default)
    if given.vararg is not None:
        yield f"*{_parameter(given.vararg, None)}"
    elif given.kwonlyargs:
        yield "*"
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _parameter(argument, default)
    if given.kwarg is not None:
        yield f"**{_parameter(given.kwarg, None)}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    kind = "" if argument.annotation is None else f": {_text(argument.annotation)}"
    return f"{argument.arg}{kind}" + ("" if default is None else f" = {_text(default)}")


def _prose(doc: str) -> str:
    """A docstring as Markdown: parts as lists, examples as code."""
    out: list[str] = []
    part = ""
    for chunk in re.split(rf"^({'|'.join(_PARTS)}):\n", doc, flags=re.MULTILINE):
        if chunk in _PARTS:
            part = chunk
        elif not part:
            out.append(chunk.strip())
        elif part.startswith("Example"):
            out.append(f"```pycon\n{textwrap.dedent(chunk).strip()}\n```")
        else:
            out.append(f"**{part}**\n\n{_listed(textwrap.dedent(chunk), named=part != 'Returns')}")
    return "\n\n".join(out)


def _listed(text: str, *, named: bool) -> str:
    if not named:
        return " ".join(text.split())
    items = re.split(r"^(?=\S)", text.strip(), flags=re.MULTILINE)
    return "\n".join(
        "- " + re.sub(r"^([\w*, .]+?):", r"`\1`:", " ".join(item.split()))
        for item in items
        if item.strip()
    )


def _fields(value: Any) -> str:
    fields = [field for field in dataclasses.fields(value) if not field.name.startswith("_")]
    return "Fields: " + ", ".join(f"`{field.name}: {field.type}`" for field in fields) + "."


def _entry(name: str, value: Any, level: str) -> Iterator[str]:
    yield f"{level} `{name}`"
    if name == "hf.Settings":
        yield "How checkpoints are made and kept: [all settings](settings.md)."
        return
    if inspect.isclass(value):
        made = dataclasses.is_dataclass(value)
        if "__init__" in value.__dict__ and inspect.isfunction(value.__init__) and not made:
            yield f"```python\n{_signature(value.__init__, name)}\n```"
        yield _prose(inspect.getdoc(value) or "")
        if made:
            yield _fields(value)
        elif "Args:" in (doc := inspect.getdoc(value.__init__) or ""):
            yield _prose(doc)
        return
    target = value.fget if isinstance(value, property) else value
    if not isinstance(value, property):
        yield f"```python\n{_signature(target, name.rsplit('.', 1)[-1])}\n```"
    yield _prose(inspect.getdoc(target) or "")


def _methods(value: Any) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that Holdfast itself defines, in order of definition."""
    seen: set[str] = set()
    for kind in value.__mro__:
        if not kind.__module__.startswith("holdfast"):
            continue
        for name, member in vars(kind).items():
            plain = inspect.isfunction(member) or isinstance(member, property)
            if plain and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, member


def _whole(name: str, value: Any) -> Iterator[str]:
    yield from _entry(name, value, "###")
    if inspect.isclass(value) and not issubclass(value, msgspec.Struct):
        short = name.rsplit(".", 1)[-1]
        first: dict[int, str] = {}
        for method, member in _methods(value):
            spelled = first.setdefault(id(member), method)
            if spelled != method:
                yield f"#### `{short}.{method}`"
                yield f"The same as `{short}.{spelled}`."
            else:
                yield from _entry(f"{short}.{method}", member, "####")


def api_page() -> str:
    """Everything that `import holdfast as hf` offers to the author of a pipeline."""
    modules = _public()
    values = {
        name: getattr(import_module(module), name)
        for name, module in modules.items()
        if module != "holdfast" and not name.startswith("_")
    }
    placed = {name for _, _, names in _SECTIONS for name in names or ()}
    out = ["# API", _API_HEAD]
    for title, about, names in _SECTIONS:
        out += [f"## {title}", about]
        if names is None:
            windows = title.startswith("Windows")
            names = [  # noqa: PLW2901 - the rest, in two halves
                name
                for name, module in modules.items()
                if name in values
                and name not in placed
                and (module == "holdfast.api.functions") != windows
            ]
        for name in names:
            out += _whole(f"hf.{name}", values[name])
        if title == "Streams":
            for path in _OTHERS:
                module, name = path.rsplit(".", 1)
                out += _whole(name, getattr(import_module(module), name))
    for title in ("sources", "sinks"):
        package = import_module(f"holdfast.{title}")
        out += [f"## {title.capitalize()}", f"Names of `hf.{title}`."]
        for name in package.__all__:
            out += _entry(f"hf.{title}.{name}", getattr(package, name), "###")
    return "\n\n".join(part for part in out if part) + "\n"


def settings_page() -> str:
    """Every setting with its default, what it trades and what it costs."""
    from holdfast.settings import Settings

    doc = inspect.getdoc(Settings) or ""
    meanings = {
        found[1]: " ".join(found[2].split())
        for found in re.finditer(r"^ *(\w+): (.*?)(?=^ *\w+: |\Z)", doc, re.MULTILINE | re.DOTALL)
    }
    rows = [
        f"| `{field.name}` | `{_default(field)}` | {meanings[field.name]} |"
        for field in msgspec.structs.fields(Settings)
    ]
    return "\n".join(
        [
            "# Settings",
            "",
            _SETTINGS_HEAD,
            "",
            "| setting | default | what it does, and what it costs |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _default(field: Any) -> str:
    if field.default is msgspec.UNSET:
        return "not given"
    return f"{field.default:_}" if type(field.default) is int else repr(field.default)


if __name__ == "__main__":
    API.write_text(api_page(), encoding="utf-8")
    SETTINGS.write_text(settings_page(), encoding="utf-8")
