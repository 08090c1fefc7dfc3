"""Loading a pipeline file: exactly one pipeline, its own arguments, errors with a remedy."""

from __future__ import annotations

import socket
import sys

import pytest

import holdfast.cli.commands.run as run_module
from holdfast.cli.commands.run import load_pipeline
from holdfast.cli.main import main
from holdfast.errors import InvalidInputError

DECLARES = "import holdfast as hf\npipe = hf.Pipeline('orders', store='cp')\n"


def kind_of(path: str) -> str:
    with pytest.raises(InvalidInputError) as caught:
        load_pipeline(path)
    return caught.value.kind


def test_a_file_sees_its_own_name_and_not_our_arguments(tmp_path) -> None:
    """A file that reads sys.argv works under `holdfast run` too, and leaves ours as they were."""
    file = tmp_path / "orders.py"
    file.write_text(f"import sys\nassert len(sys.argv) == 1, sys.argv\n{DECLARES}")
    before = list(sys.argv)
    assert load_pipeline(str(file)).name == "orders"
    assert sys.argv == before


def test_files_without_exactly_one_pipeline_are_refused(tmp_path) -> None:
    """No file, a file that fails, none or two pipelines: each has a kind of its own."""
    file = tmp_path / "f.py"
    assert kind_of(str(tmp_path / "missing.py")) == "no_file"
    file.write_text("x = 1 / 0\n")
    assert kind_of(str(file)) == "file_failed"
    file.write_text("x = 1\n")
    assert kind_of(str(file)) == "not_one_pipeline"
    file.write_text(f"{DECLARES}other = hf.Pipeline('b', store='cp')\n")
    assert kind_of(str(file)) == "not_one_pipeline"


def test_the_command_reports_errors_without_a_traceback(tmp_path, capsys) -> None:
    """A wrong file is exit code 2, wherever the options stand."""
    for args in ([], ["--forever"]):
        assert main(["run", *args, str(tmp_path / "missing.py")]) == 2
        assert main(["run", str(tmp_path / "missing.py"), *args]) == 2
    assert capsys.readouterr().err.startswith("holdfast: no such pipeline file")


@pytest.mark.parametrize("option", ["--from-checkpoint", "--resume"])
def test_a_checkpoint_to_go_back_to_has_one_name_and_an_old_one(option, monkeypatch) -> None:
    """`from_checkpoint` as in Python; `--resume`, what it was called, still works."""
    given = []
    monkeypatch.setattr(run_module, "run_file", lambda file, **more: given.append(more))
    main(["run", option, "ago:2h", "orders.py"])
    assert given[0]["from_checkpoint"] == "ago:2h"


def test_a_file_that_runs_its_pipeline_itself_is_refused(tmp_path) -> None:
    """`pipe.run()` at module level would run without a table: it is refused, with the way out."""
    file = tmp_path / "f.py"
    file.write_text(f"{DECLARES}pipe.run()\n")
    assert kind_of(str(file)) == "runs_itself"


def test_a_port_that_is_taken_is_told_without_a_traceback() -> None:
    """Metrics of two pipelines cannot share a port; port 0 takes a free one."""
    pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")
    from holdfast.runtime.metrics import Metrics

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for port in (taken.getsockname()[1], 70_000):
            with pytest.raises(InvalidInputError) as caught:
                Metrics(port, "p")
            assert caught.value.kind == "metrics_port" and caught.value.facts["port"] == port
