"""Private names of Spark are in one module, each listed with the fast path that it serves."""

from __future__ import annotations

import ast
import re

import pytest

from holdfast.spark.classic import FAST_PATHS
from tests.helpers.paths import PACKAGE
from tests.helpers.source import tree_of

MODULES = sorted(PACKAGE.rglob("*.py"))
DOOR = PACKAGE / "spark" / "classic.py"
_HIDDEN = re.compile(
    r"_(?:j[a-z]\w*|sc|gateway|origin|to_seq|to_java_column|active_spark_context|instantiated\w*)"
    r"|java_exception"
)
_INSIDE = (
    "pyspark.sql.classic",
    "pyspark.sql.pandas",
    "pyspark.sql.connect",
    "pyspark.util",
    "pyspark.daemon",
)
# Not Spark's classes: the coordinate of a jar, and the login modules that Kafka documents.
_CLASSES = re.compile(
    r"\borg\.apache\.(?!spark:spark-sql-kafka|kafka\.common\.security\.)|__globPaths__"
)


def _private(tree: ast.AST) -> list[str]:
    """Private names of Spark that some code uses, as `line: name`."""
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [] if own else [node.attr]
            names = [name for name in names if _HIDDEN.fullmatch(name)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            names = [text] if _HIDDEN.fullmatch(text) or _CLASSES.search(text) else []
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            inside = module.startswith((*_INSIDE, "py4j", "pyspark.java_gateway"))
            hidden = module.startswith("pyspark") and any(a.name[0] == "_" for a in node.names)
            names = [module] if inside or hidden else []
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.startswith((*_INSIDE, "py4j"))]
        found += [f"{node.lineno}: {name}" for name in names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_other_module_has_a_private_name_of_spark(path):
    """Attributes, text for `getattr`, imports and names of Java's classes: only in one module."""
    found = _private(tree_of(path))
    assert found == [] or path == DOOR


def test_the_search_finds_what_it_looks_for():
    """Each way in which a private name could be used is seen."""
    texts = [
        "frame._jdf.select(1)",
        "getattr(spark, '_jsparkSession')",
        "from pyspark.sql.classic.column import _to_seq",
        "import py4j.protocol",
        "name = 'org.apache.spark.sql.X'",
        "from pyspark.sql.types import _parse",
        "error.java_exception.getCause()",
    ]
    assert [text for text in texts if not _private(ast.parse(text))] == []
    assert _private(ast.parse("self._journal = _judge(spark.sparkContext)")) == []


def test_every_private_name_is_listed_with_its_fast_path():
    """What `_reach` is asked for is what `FAST_PATHS` lists: nothing more, nothing less."""
    tree = tree_of(DOOR)
    reached = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_reach":
            texts = [n.value for n in ast.walk(node.args[1]) if isinstance(n, ast.Constant)]
            assert texts, f"line {node.lineno}: a name that is not written there"
            reached.update(texts)
    assert reached == {name for path in FAST_PATHS.values() for name in path.names}
    for node in ast.walk(tree):  # and nothing goes round it
        if isinstance(node, ast.Attribute) and _HIDDEN.fullmatch(node.attr):
            assert node.attr == "_jlistenerobj", f"line {node.lineno}: {node.attr}"
