"""The look: colours, progress, the live table, completion, and names that have moved."""

from __future__ import annotations

import io
import re

import pytest

from holdfast.cli.epoch_table import EpochTable
from holdfast.cli.output import progress, progress_line
from holdfast.cli.render import coloured, line, moment, plain, when
from holdfast.connectors.base import Backlog
from holdfast.ids import CheckpointId
from holdfast.runtime.lag import Lag
from holdfast.runtime.report import CheckpointState, EpochReport
from tests.helpers.cli_world import call, holdfast

SHELLS = {
    "bash": (".bashrc", 'eval "$(_HOLDFAST_COMPLETE=bash_source holdfast)"'),
    "zsh": (".zshrc", 'eval "$(_HOLDFAST_COMPLETE=zsh_source holdfast)"'),
    "fish": (".config/fish/completions/holdfast.fish", "_HOLDFAST_COMPLETE=fish_source holdfast"),
}


class Terminal(io.StringIO):
    """A terminal that remembers."""

    def isatty(self):
        return True


def test_the_old_name_of_warmup_says_the_new_one():
    """`holdfast prepare` is exit 2 and names `warmup`; with --json it is a document."""
    answer = call("prepare", "--json")
    assert answer.code == 2
    assert "use `holdfast warmup`" in answer.err
    assert answer.json["kind"] == "wrong_usage"


def test_a_wrong_name_gets_the_one_that_was_perhaps_meant():
    """The parser knows all commands without importing them."""
    assert "verify" in call("verfy").err


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_installed_once(shell, tmp_path):
    """One line in the shell's file, and not a second one; what was there stays."""
    name, text = SHELLS[shell]
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("# mine\n")
    env = {"HOME": str(tmp_path), "SHELL": f"/usr/bin/{shell}"}
    for _ in range(2):
        answer = holdfast("--install-completion", env=env)
        assert (answer.code, name in answer.out) == (0, True), answer.err
    assert path.read_text().startswith("# mine\n")
    assert path.read_text().count(text) == 1
    shown = holdfast("--show-completion", env=env)
    assert "_HOLDFAST_COMPLETE" in shown.out


def test_a_shell_without_completion_is_named():
    """An unknown shell is wrong usage, with those that are known."""
    answer = holdfast("--install-completion", env={"SHELL": "/bin/tcsh"})
    assert answer.code == 2
    assert "tcsh" in answer.err
    assert "bash,zsh,fish" in answer.err


def test_colours_are_escape_codes_around_the_same_text():
    """Without its codes a coloured line is the plain one; control characters never get through."""
    lines = [line(("ok", "green"), " and ", ("bad\x1b[2J", "bold red"), ("", "dim"))]
    text = coloured(lines)
    assert text == "\x1b[32mok\x1b[0m and \x1b[1;31mbad?[2J\x1b[0m\n"
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == plain(lines)


def test_instants_are_utc_and_to_the_millisecond_where_they_have_any():
    """Before 1970 and far away, too."""
    assert (when(None), when(0), moment(0)) == ("-", "1970-01-01 00:00:00Z", "1970-01-01 00:00:00Z")
    assert moment(1_500_000) == "1970-01-01 00:00:01.500Z"
    assert moment(-500_000) == "1969-12-31 23:59:59.500Z"
    assert when(10**20) == f"{10**20}us"


def test_progress_is_drawn_on_a_terminal_only(monkeypatch):
    """Bytes, speed and the time left; the line is cleared at the end, and nothing is drawn quietly."""
    text = progress_line("verify", 500_000, 2_000_000, 1.0)
    assert text.startswith("verify ")
    assert text.endswith(" 500kB/2.0MB 500kB/s 0:00:03")
    monkeypatch.setattr("sys.stderr", Terminal())
    with progress("verify") as bar:
        bar(1, 2)
        bar(2, 2)
    import sys

    assert "2B/2B" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().endswith("\r\x1b[K")
    with progress("verify", quiet=True) as bar:
        assert bar is None


def _report(epoch):
    return EpochReport(
        epoch=epoch,
        rows=7,
        keys=3,
        changes=2,
        late=1,
        watermark_us=1_000_000,
        lag_us=2_000_000,
        bytes_new=99,
        phases_ms={"plan": 1.0, "job": 8.0, "draft": 2.0},
        backlog={"orders": Backlog(50, 100, "rows")},
        checkpoint=CheckpointState(CheckpointId("c")),
        lag={"orders": Lag(rows=50, seconds=1.5)},
    )


def test_the_live_table_is_drawn_over_itself(monkeypatch):
    """Each epoch moves up by the height of the last picture; the newest twelve are shown."""
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    import sys

    with EpochTable("orders") as table:
        for epoch in range(15):
            table.add(_report(epoch))
        table.say("finishing this epoch")
    pictures = re.split(r"\x1b\[\d+A\r\x1b\[J", sys.stdout.getvalue())
    heights = [int(n) for n in re.findall(r"\x1b\[(\d+)A", sys.stdout.getvalue())]
    assert len(pictures) == 16
    assert heights == [len(picture.splitlines()) for picture in pictures[:-1]]
    last = pictures[-1].splitlines()
    assert last[0] == "pipeline orders"
    assert [row.split()[0] for row in last[2:14]] == [str(n) for n in range(3, 15)]
    assert "orders: 50 of 100 rows; behind by 50 rows, 1.5 s" in last
    assert last[-1] == "finishing this epoch"


def test_without_a_terminal_an_epoch_is_a_line(capsys):
    """All its numbers, the watermark and what is left."""
    with EpochTable("orders") as table:
        table.add(_report(4))
    assert capsys.readouterr().out == (
        "epoch 4: 7 rows, 3 keys, 2 changes, 1 late, 99 bytes, 11 ms (plan=1ms job=8ms draft=2ms)"
        "; watermark 1970-01-01 00:00:01, 2 s behind the newest row; orders: 50 rows, 1.5 s left\n"
    )
