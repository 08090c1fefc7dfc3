"""Every `kind` that the source can give to an error or a finding, found by reading the source."""

import ast
from pathlib import Path

from tests.helpers.paths import PACKAGE
from tests.helpers.source import nodes_of

SOURCE = PACKAGE
_FINDING_CALLS = {"_find": 1, "_finding": 0, "_note": 2, "finding": 0}
_COMPOSED = {"f'invalid_{what}'": {"invalid_epoch", "invalid_sequence"}}


def _constants(node: ast.AST | None) -> set[str]:
    """The texts that an expression can be, as far as they are written down."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return _constants(node.body) | _constants(node.orelse)
    if isinstance(node, ast.JoinedStr):
        return _COMPOSED[ast.unparse(node)]  # a new one must be entered there
    return set()


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def error_kinds() -> dict[str, set[str]]:
    """By kind, the files that can raise it."""
    helpers = ("_error", "_refuse", "refuse", "kind", "called", "wrong_answer", "whole_number")
    return _collect(lambda name: name.endswith("Error") or name in helpers)


def finding_kinds() -> dict[str, set[str]]:
    """By kind, the files that can report it."""
    return _collect(lambda name: name in ("Finding", *_FINDING_CALLS), positional=True)


def _collect(wanted, *, positional=False):
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if _is_unfinished(path):
            continue
        kinds: set[str] = set()
        for node in nodes_of(path):
            if not positional:
                kinds |= _tables(node)
            if isinstance(node, ast.Call) and wanted(_called(node)):
                given = next((k.value for k in node.keywords if k.arg == "kind"), None)
                place = _FINDING_CALLS.get(_called(node)) if positional else None
                if given is None and place is not None and len(node.args) > place:
                    given = node.args[place]
                kinds |= _constants(given)
        for kind in kinds:
            found.setdefault(kind, set()).add(path.relative_to(SOURCE).as_posix())
    return found


def _is_unfinished(path: Path) -> bool:
    """A package without `__init__.py` is not part of the library yet."""
    package = SOURCE / path.relative_to(SOURCE).parts[0]
    return package.is_dir() and not (package / "__init__.py").exists()


def _tables(node: ast.AST) -> set[str]:
    """`kind_default` of a class; tables called `_KINDS` whose values begin with a kind."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "_KINDS.get":
        default = node.args[1]
        return _constants(default.elts[0] if isinstance(default, ast.Tuple) else default)
    if isinstance(node, ast.AnnAssign):
        targets, value = [node.target], node.value
    elif isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    else:
        return set()
    names = {getattr(target, "id", "") for target in targets}
    if "kind_default" in names:
        return _constants(value)
    if "_KINDS" in names and isinstance(value, ast.Dict):
        rows = [v.elts[0] if isinstance(v, ast.Tuple) else v for v in value.values]
        return set().union(*(_constants(row) for row in rows))
    return set()
