"""The page about scale shows what the simulator has found."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

from tests.helpers.paths import ROOT


def _tool():
    spec = importlib.util.spec_from_file_location("draw_scale", ROOT / "tools" / "draw_scale.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_of_the_page_is_that_of_the_results():
    """Writing the tables again from the results file changes nothing, and there are some."""
    tool = _tool()
    results = json.loads(tool.RESULTS.read_text())
    page = tool.PAGE.read_text()
    assert tool.filled(page, results) == page
    results["pipelines"][-1]["cpu_ms"] *= 2
    assert tool.filled(page, results) != page
    assert {point["epoch"] for point in results["pipelines"]} >= {10, 1_000_000}


def test_prose_of_the_page_has_no_numbers_of_its_own():
    """Milliseconds, megabytes and dollars stand in tables only."""
    prose = re.sub(r"<!-- table .*?<!-- end -->", "", _tool().PAGE.read_text(), flags=re.DOTALL)
    assert re.findall(r"\d[\d.,]* ?(?:ms|kB|MB|GB|TB)\b|\$\d", prose) == []


def test_pictures_are_drawn_for_light_and_dark_pages():
    """Both are there, are SVG, and the page shows both."""
    tool = _tool()
    for theme, (back, ink, _) in tool.THEMES.items():
        text = (tool.IMAGES / f"scale-{theme}.svg").read_text()
        assert text.startswith("<?xml")
        assert back in text
        assert ink in text
        assert f"../img/scale-{theme}.svg" in tool.PAGE.read_text()


def test_the_simulator_runs(tmp_path):
    """Its quick form takes the real planner, index and store through epochs, and writes results."""
    out = tmp_path / "scale.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "simulate_scale.py"), "--quick"]
    subprocess.run([*command, "--out", str(out)], check=True, capture_output=True, timeout=300)
    results = json.loads(out.read_text())
    for point in results["pipelines"]:
        assert point["requests"]["PUT"] < 8
        assert point["requests"]["LIST"] < 8
        assert point["requests"].get("HEAD", 0) == 0
    first, *_, last = (p for p in results["one_partition"])
    assert last["layers_max"] <= 24
    assert first["amplification"] >= 1
