"""The documents of the repository: links lead somewhere, decisions follow one template."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from tests.tidy.test_source import LAYERS, LEAVES

ROOT = Path(__file__).resolve().parents[2]
ADR = ROOT / "docs" / "adr"
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "spec/**/*.md", "src/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
    if path.is_file()
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _prose(page):
    """A page without its code, where brackets mean something else."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))


def _anchors(page):
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _name(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_between_documents_resolve(page):
    """Every relative link leads to a file, every fragment to a heading, in the repository."""
    broken = []
    for target in _LINK.findall(_prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if (
            not file.exists()
            or not file.is_relative_to(ROOT)
            or (fragment and file.suffix == ".md" and fragment not in _anchors(file))
        ):
            broken.append(target)
    assert broken == []


def test_every_decision_record_follows_the_template():
    """Each ADR has a status, a date and four parts in order; the index is made from them."""
    spec = importlib.util.spec_from_file_location("adr", ROOT / "tools" / "make_adr_index.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ADR / "README.md").read_text(encoding="utf-8") == module.page()
    records = sorted(ADR.glob("[0-9]*.md"))
    assert len({record.name[:4] for record in records}) == len(records), "a number is used twice"
    for record in records:
        parts = re.findall(r"^## (.*)$", record.read_text(encoding="utf-8"), re.MULTILINE)
        assert parts == ["Context", "Decision", "Rejected", "Consequences"], record.name


ARCHITECTURE = ROOT / "ARCHITECTURE.md"
SOURCE = ROOT / "src" / "holdfast"
MAPS = [
    ARCHITECTURE,
    ROOT / "CONTRIBUTING.md",
    *(
        page
        for page in sorted((ROOT / "docs" / "internals").glob("*.md"))
        if page.stem != "files-on-disk"
    ),
]
STORED = (
    "catalog/",
    "sources/",
    "checkpoints/",
    "outcomes/",
    "pins/",
    "offsets/",
    "segments/",
)  # of stores
_PATH = re.compile(r"[\w./*<>-]+(?:\.pyi?|/)")


@pytest.mark.parametrize("page", MAPS, ids=_name)
def test_files_that_the_maps_name_exist(page):
    """Every source file or folder that the maps of the repository name is there."""
    text = page.read_text(encoding="utf-8")
    pictures = [body for kind, body in _FENCE.findall(text) if not kind]
    spans = [*re.findall(r"`([^`\n]+)`", _FENCE.sub("", text)), *"\n".join(pictures).split()]
    named = {span.rstrip(",;") for span in spans if _PATH.fullmatch(span.rstrip(",;"))}
    assert page != ARCHITECTURE or len(named) > 30
    below = re.search(r"Paths are below `([^`]+)`", text)
    bases = [ROOT, SOURCE, *([ROOT / below[1]] if below else [])]
    anywhere = {path.name for path in SOURCE.rglob("*.py")}
    missing = [
        name
        for name in sorted(named)
        if not any(hit for base in bases for hit in base.glob(name))
        and name not in anywhere
        and "<" not in name
        and not name.startswith(STORED)
    ]
    assert missing == []


def test_the_thread_table_is_complete():
    """ARCHITECTURE.md names every thread that the source starts, and no other."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    started = set(re.findall(r'name(?:_prefix)?="(holdfast-[a-z-]+)"', source))
    table = ARCHITECTURE.read_text(encoding="utf-8").split("## Threads")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(holdfast-[a-z-]+)` \|", table, re.MULTILINE)) == started


def test_the_layers_are_drawn_as_they_are_tested():
    """The table of ARCHITECTURE.md has the leaves and layers of the import test, in its order."""
    table = ARCHITECTURE.read_text(encoding="utf-8").split("\n## ")[0]
    drawn = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", table, re.MULTILINE)
    assert drawn == LAYERS
    leaves = next(line for line in table.splitlines() if line.startswith("| leaves |"))
    assert set(re.findall(r"`(\w+)\.py`", leaves)) == LEAVES


# What a reader of the field would not say, and what to say instead.
OLD_WORDS = {
    r"\bbeside\b": "concurrently, next to",
    r"\banew\b": "again, from scratch",
    r"\blet(?:s|ting)?(?: \w+){0,3} go\b": "release, discard",
    r"\b(?:take|takes|taken|taking|took)(?: \w+){0,2} back\b": "retract",
    r"\bmust bear\b": "is idempotent",
    r"\bwhoever\b": "the one that",
    r"\bto be had\b": "available as",
    r"\b(?:go|goes|going|went|gone) on\b": "continue, resume",
    r"\b(?:function|aggregate)s? of the user\b": "the user function",
    r"\blook-ups?\b": "lookup",
    r"\bmerg(?:e|es|ing) of runs\b": "compaction",
    r"\bslices? of (?:a|the|every|each) source": "split",
    r"\bdifferent rows\b": "distinct rows",
}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_documents_use_the_words_of_the_field(page):
    """No page falls back into words that a reader from Flink, Iceberg or DBSP has to guess."""
    text = " ".join(_prose(page).split())
    old = {
        found.group(): instead
        for pattern, instead in OLD_WORDS.items()
        for found in re.finditer(pattern, text, re.IGNORECASE)
    }
    assert old == {}


PACKAGES = sorted(SOURCE.rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=_name)
def test_a_package_says_where_to_begin(package):
    """A package has a reading list, and every module on it is there."""
    text = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
    listed = [
        name
        for names in re.findall(r"^- ((?:`\w+`(?:, )?)+):", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    ]
    here = {path.stem for path in package.parent.iterdir()}
    assert [name for name in listed if name not in here] == []
    if package.parent.parent == SOURCE and package.parent.name != "testing":
        assert listed, package.parent.name


def test_modules_name_files_that_exist():
    """A docstring or comment that names a file of the source names one that is there."""
    files = [path.relative_to(ROOT).as_posix() for path in SOURCE.rglob("*.py")]
    lost = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"`([\w/]+\.py)`", path.read_text(encoding="utf-8"))
        if not any(file.endswith(f"/{name}") for file in files) and not (ROOT / name).exists()
    ]
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_what_a_page_names_of_the_repository_is_there(page):
    """Paths below tests, tools, benchmarks, examples and spec exist, and so do names of `hf`."""
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"\b(?:tests|tools|benchmarks|examples|spec)/[\w/.-]*\w(?![\w<])", text)
    assert [path for path in paths if not (ROOT / path).exists() and path[-3:] != ".md"] == []
    public = (SOURCE / "__init__.pyi").read_text(encoding="utf-8")
    names = set(re.findall(r" as (\w+)$", public, re.MULTILINE))
    assert set(re.findall(r"\bhf\.(\w+)", text)) <= names


def test_contributors_learn_of_every_target():
    """CONTRIBUTING.md names what `make` can do, but for the targets that others call."""
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([\w-]+)", page))
    assert set(phony.split()) - named <= {"setup", "ready", "clean"}


def test_the_readme_lists_every_extra():
    """Each extra of pyproject.toml that a user can ask for has a row, and no other has one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8").split("| extra | for |")[1]
    table = readme.split("\n\n")[0]
    rows = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert rows == set(project["optional-dependencies"]) - {"test", "dev", "bench"}
