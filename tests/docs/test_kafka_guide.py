"""The code of docs/guides/kafka.md runs against a broker, and gives what the page says."""

from __future__ import annotations

import json
import re

import pytest

import holdfast as hf
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.spark
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$",
    (ROOT / "docs" / "guides" / "kafka.md").read_text(),
    re.MULTILINE | re.DOTALL,
)


def test_the_blocks_of_the_guide_run_and_give_what_it_says(spark, kafka, tmp_path, monkeypatch):
    """Totals by customer in a compacted topic; a table out of changes; options without a secret."""
    monkeypatch.chdir(tmp_path)
    names = {name: kafka.topic(name) for name in ("orders", "totals", "customers")}
    kafka.send(
        names["orders"], [json.dumps({"customer": c, "amount": n}) for n, c in enumerate("aba")]
    )
    kafka.send(
        names["customers"],
        [("1", '{"id": 1, "land": "at"}'), ("2", '{"id": 2, "land": "at"}'), ("1", None)],
    )
    scope = {"servers": kafka.servers}
    for block in BLOCKS:
        own = re.sub(  # topics of this test alone
            r'(servers,\s+)"(\w+)"', lambda found: f'{found[1]}"{names[found[2]]}"', block
        )
        exec(compile(own, "kafka.md", "exec"), scope)
        pipe = scope["pipe"]
        if pipe.name == "customers":
            assert pipe.view("by_land").to_arrow().to_pylist() == [{"land": "at", "n": 1}]
    assert {k: json.loads(v)["total"] for k, v in kafka.table(names["totals"]).items()} == {
        b"a": 2, b"b": 1,
    }  # fmt: skip
    assert "env:KAFKA_PASSWORD" in scope["options"].values()
    assert isinstance(scope["secured"], hf.sources.Kafka)
