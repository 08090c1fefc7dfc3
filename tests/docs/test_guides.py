"""The code of the guides about pipelines and the journal is correct as it is printed."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from holdfast.testing.connectors import SOURCE_CHECKS
from tests.helpers.paths import ROOT

GUIDES = ROOT / "docs" / "guides"


def _blocks(name):
    text = (GUIDES / name).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _json(schema):
    return hf.sources.Files("incoming/", schema=schema, format="json")


def _taken_for_granted(spark, tmp_path, number, block):
    """A pipeline with streams of the usual names, unless the block declares them itself."""
    pipe = hf.Pipeline(f"guide-{number}", store=tmp_path / f"store-{number}", spark=spark)
    files = _json("customer string, amount double, at timestamp")
    pipe.source("any", files).distinct(name="any_rows")
    names = {"hf": hf, "pa": pa, "pc": pc, "pipe": pipe, "files": files}
    streams = {
        "orders": (files, "at"),
        "clicks": (_json("user long, clicked_at timestamp"), "clicked_at"),
        "views": (_json("user long, page string, viewed_at timestamp"), "viewed_at"),
    }
    for name, (source, time) in streams.items():
        made_here = re.search(rf"^{name} = ", block, re.MULTILINE)
        if re.search(rf"\b{name}\b[.,]", block) and not made_here:
            names[name] = pipe.source(name, source, event_time=time)
    return names


def test_the_code_of_the_guide_about_pipelines_is_analysed_by_spark(spark, tmp_path, monkeypatch):
    """Every block of pipelines.md declares what Spark accepts; the first one runs, and adds up."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "incoming").mkdir()
    rows = [("ada", 2.0), ("bob", -1.0), ("ada", 0.5)]
    lines = [json.dumps({"customer": customer, "amount": amount}) for customer, amount in rows]
    (tmp_path / "incoming" / "one.json").write_text("\n".join(lines))
    blocks = _blocks("pipelines.md")
    assert len(blocks) >= 8
    for number, block in enumerate(blocks):
        names = _taken_for_granted(spark, tmp_path, number, block)
        exec(compile(block, f"pipelines.md, block {number}", "exec"), names)
        if number == 0:
            table = names["pipe"].view("totals").to_arrow()
            assert table.select(["customer", "total", "orders"]).to_pylist() == [
                {"customer": "ada", "total": 2.5, "orders": 2}
            ]
        if isinstance(names.get("orders"), hf.sources.Files):
            names["pipe"].source("more", names["orders"]).distinct(name="more_rows")
        names["pipe"].resolve()


def test_the_code_of_the_guide_about_connectors_keeps_the_contract(spark, tmp_path, monkeypatch):
    """The source of connectors.md runs in a pipeline and passes the suite, as the guide says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("1\ntwo\n1\n")
    pipe = hf.Pipeline("guide", store=tmp_path / "store", spark=spark, partitions=2)
    names = {"hf": hf, "pipe": pipe}
    for number, block in enumerate(_blocks("connectors.md")):
        exec(compile(block, f"connectors.md, block {number}", "exec"), names)
    counts = pipe.view("counts").to_arrow().to_pylist()
    assert {row["line"]: row["n"] for row in counts} == {"1": 2, "two": 1}
    other = hf.Pipeline("bad", store=tmp_path / "store", spark=spark, partitions=2)
    numbers = other.source("numbers", names["Numbers"]("words.txt"))
    numbers.distinct(name="numbers_seen")
    assert other.run().bad == {"numbers": 1}
    for check in SOURCE_CHECKS:
        (tmp_path / check.__name__).mkdir()
        check(names["LinesRig"](tmp_path / check.__name__, spark))


def test_the_code_of_the_guide_about_the_journal_runs(tmp_path, monkeypatch):
    """The block of journal.md writes, reads, queries and proves."""
    monkeypatch.chdir(tmp_path)
    names = {}
    (block,) = _blocks("journal.md")
    exec(compile(block, "journal.md", "exec"), names)
    assert names["receipt"].count == 1
