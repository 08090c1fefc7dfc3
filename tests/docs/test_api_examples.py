"""Every public docstring of the API has its sections, and an example that runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast import api
from holdfast.api.graph import PipelineGraph
from holdfast.api.grouped import Grouped
from holdfast.api.view import View
from holdfast.operators.aggregate.declare import Aggregate

CLASSES = [hf.Pipeline, hf.Stream, Grouped, View, PipelineGraph, Aggregate]
FUNCTIONS = [
    value
    for name in hf.__all__
    if inspect.isfunction(value := getattr(hf, name)) and value.__module__ != "holdfast"
]
NO_RAISES = {"graph", "explain", "text", "mermaid", "svg"}  # nothing of the user can be wrong
HAS_RUN = {
    "holdfast.api.pipeline.Pipeline.lag",
    "holdfast.connectors.parquet.changelog.read_changelog",
    "holdfast.api.pipeline.Pipeline.compact_output",
    "holdfast.api.pipeline.Pipeline.plan_outputs",
    "holdfast.api.pipeline.Pipeline.reader",
    "holdfast.api.pipeline.Pipeline.view",
    "holdfast.api.view.View.to_arrow",
    "holdfast.api.view.View.to_duckdb",
    "holdfast.api.view.View.to_pandas",
    "holdfast.api.view.View.to_spark",
}
BARE = ("stream", "sets", "rows", "grouped", "functions", "windows", "declare")


def _public():
    yield from ((function.__name__, function) for function in FUNCTIONS)
    for owner in CLASSES:
        for name in dir(owner):
            value = inspect.getattr_static(owner, name)
            value = value.fget if isinstance(value, property) else value
            if not name.startswith("_") and inspect.isfunction(value):
                yield f"{owner.__name__}.{name}", value


@pytest.mark.parametrize(
    ("name", "value"), list(_public()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_public_function_says_what_it_takes_gives_and_refuses(name, value):
    """Args, Returns, Raises, and an example."""
    if name in ("Stream.columns", "Aggregate.expressions"):  # plain facts
        return
    text = inspect.getdoc(value) or ""
    signature = inspect.signature(value)
    asked = [parameter for parameter in signature.parameters if parameter != "self"]
    section = text.partition("Args:")[2].partition("Returns:")[0]
    assert all(f"{parameter}:" in section for parameter in asked), f"Args of {name}"
    gives = signature.return_annotation not in (None, "None")
    assert gives == ("Returns:" in text), f"Returns of {name}"
    assert ("Raises:" in text) == (name.rpartition(".")[2] not in NO_RAISES), f"Raises of {name}"
    assert ">>> " in text.partition("Example:")[2], f"no example of {name}"


def _examples() -> dict[str, doctest.DocTest]:
    finder = doctest.DocTestFinder(recurse=True, exclude_empty=True)
    modules = [f"holdfast.api.{info.name}" for info in pkgutil.iter_modules(api.__path__)]
    modules += [f"holdfast.operators.{name}.declare" for name in ("aggregate", "join")]
    modules.append("holdfast.connectors.parquet.changelog")
    tests: dict[str, doctest.DocTest] = {}
    for module in map(importlib.import_module, modules):
        for owner in vars(module).values():
            # A decorated function is found by its own name, not by that of its wrapper.
            if getattr(owner, "__module__", None) == module.__name__ or inspect.ismodule(owner):
                if inspect.isfunction(owner) or inspect.isclass(owner):
                    name = f"{module.__name__}.{owner.__qualname__}"
                    for test in finder.find(owner, name, module=False, globs={}):
                        if test.examples:
                            tests[test.name] = test
    return tests


EXAMPLES = _examples()


@pytest.fixture(scope="module")
def finished(spark, tmp_path_factory):
    """A pipeline that has run once."""
    folder = tmp_path_factory.mktemp("finished")
    pipe, orders = _shop(folder, spark, bare=False)
    pipe.run()
    return folder, pipe, orders


def _shop(folder, spark, *, bare):
    (folder / "in").mkdir(exist_ok=True)
    rows = {"customer": ["ann", "ann", "bob"], "amount": [3.0, 4.0, 5.0]}
    table = pa.table({**rows, "at": pa.array([0, 10**6, 2 * 10**6], pa.timestamp("us", "UTC"))})
    pq.write_table(table, folder / "in" / "a.parquet")
    pipe = hf.Pipeline("shop", store=folder / "cp", spark=spark, partitions=2)
    files = hf.sources.Files(
        folder / "in", schema="customer string, amount double, at timestamp", format="parquet"
    )
    orders = pipe.source("orders", files, event_time="at")
    if not bare:
        totals = orders.group_by("customer").agg(total=hf.sum("amount"), name="totals")
        pipe.sink("totals_out", totals, hf.sinks.Parquet(folder / "totals"))
    return pipe, orders


def test_the_examples_are_found():
    """Those of methods and of decorated functions, too."""
    assert {
        "holdfast.api.windows.tumbling", "holdfast.api.pipeline.Pipeline.run",
        "holdfast.api.stream.Stream.join", "holdfast.api.functions.sum",
        "holdfast.operators.aggregate.declare.Aggregate.alias", *HAS_RUN,
    } <= EXAMPLES.keys()  # fmt: skip


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_runs(name, spark, tmp_path, finished):
    """Each in a small shop: three orders of two customers, and their totals."""
    if name in HAS_RUN:
        folder, pipe, orders = finished
    else:
        folder = tmp_path
        pipe, orders = _shop(tmp_path, spark, bare=any(f".{part}." in name for part in BARE))
    test = EXAMPLES[name]
    test.globs.update(hf=hf, pa=pa, spark=spark, pipe=pipe, orders=orders, folder=folder)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    result = runner.run(test, out=said.append, clear_globs=False)
    assert result.attempted
    assert not result.failed, "".join(said)
    shutil.rmtree(tmp_path, ignore_errors=True)
