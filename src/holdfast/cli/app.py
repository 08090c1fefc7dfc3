"""The application: every verb, and the groups that other packages bring.

Invariant: a verb or a group (`journal`, `guard`) is imported only when it is asked for or listed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from holdfast.console import missing
from holdfast.version import __version__

VERBS = {
    "ls": "inspect",
    "show": "inspect",
    "verify": "inspect",
    "recover": "inspect",
    "pin": "keep",
    "unpin": "keep",
    "delete": "keep",
    "gc": "keep",
    "rebuild-catalog": "keep",
    "restore": "keep",
    "upgrade": "keep",
    "state": "state",
    "diff": "state",
    "fork": "copy",
    "sync": "copy",
    "doctor": "doctor",
    "prepare": "prepare",
    "run": "run",
}
_GROUPS = {
    "guard": (
        "holdfast.guard.cli",
        "guard_app",
        "Savepoints for plain Spark Structured Streaming queries.",
    ),
    "journal": ("holdfast.journal.cli", "journal_app", "The embedded, hash-chained event log."),
}


class LazyGroup(TyperGroup):
    """Knows which verbs and groups there are without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Verbs in order of use, then the groups."""
        del ctx
        return [*VERBS, *_GROUPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A verb or group, imported now."""
        del ctx
        if cmd_name in VERBS:
            return self._verb(cmd_name)
        if cmd_name not in _GROUPS:
            for name in VERBS:  # so that the parser can say what was perhaps meant
                self._verb(name)
            return None
        module, name, _ = _GROUPS[cmd_name]
        try:
            group = getattr(import_module(module), name)
        except ImportError as error:
            raise missing(error) from error
        return typer.main.get_command(group)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """All verbs and groups; a group is described without being imported."""
        del ctx
        rows = [(name, self._verb(name).get_short_help_str(60)) for name in VERBS]
        rows += [(name, text) for name, (_, _, text) in _GROUPS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _verb(self, name: str) -> Any:
        if name not in self.commands:
            part = typer.Typer(rich_markup_mode=None, add_completion=False)
            import_module(f"holdfast.cli.verbs.{VERBS[name]}").register(part)
            self.commands.update(typer.main.get_group(part).commands)
        return self.commands[name]


app = typer.Typer(
    cls=LazyGroup,
    name="holdfast",
    help="Checkpoints of stateful pipelines: list, verify, query, restore. No cluster needed.",
    epilog="Exit 0: good. 1: a problem was found. 2: wrong usage. 130: Ctrl-C. "
    "--json prints one document.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


def _version(value: bool) -> None:  # noqa: FBT001 - typer calls it
    if value:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: bool = typer.Option(
        False,  # noqa: FBT003
        "--version",
        callback=_version,
        is_eager=True,
        help="Print the version.",
    ),
) -> None:
    del version
