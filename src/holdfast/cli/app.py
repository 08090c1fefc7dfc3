"""The application: commands found in the folder, each imported when it is called.

Invariants:
- A new command is one file in `commands/`: no list of commands is kept anywhere.
- `holdfast --help` imports no command: it reads the first line of each file.
- Whatever a command raises becomes a message, a JSON document and an exit code.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import click

from holdfast.cli.failures import complain, is_usage
from holdfast.cli.output import OutputError, write
from holdfast.version import __version__

F = TypeVar("F", bound=Callable[..., Any])
FOLDER = os.path.join(os.path.dirname(__file__), "commands")
PACKAGE = "holdfast.cli.commands"
SECTIONS = {
    "Look": ("ls", "show", "verify", "recover", "state", "diff"),
    "Keep": ("pin", "unpin", "delete", "gc", "restore", "rebuild-catalog", "upgrade"),
    "Copy": ("fork", "sync"),
    "Run": ("run", "submit", "doctor", "warmup"),
    "Groups": ("guard", "journal"),
}
RENAMED = {"prepare": "warmup"}
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


# One command


class _Argument(click.Argument):
    """An argument that says what it is for."""

    def __init__(self, declarations: list[str], explanation: str, **more: Any) -> None:
        super().__init__(declarations, **more)
        self.explanation = explanation


class _Arguments(click.Command):
    """Lists arguments as well as options."""

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them right before the options, with the same words in every version of click."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments, then options."""
        rows = [
            (each.make_metavar(ctx).strip("[]"), each.explanation)
            for each in self.params
            if isinstance(each, _Argument)
        ]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The example, as it is written."""
        del ctx
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")


def argument(name: str, metavar: str, explanation: str, **more: Any) -> Callable[[F], F]:
    """A positional argument; one with a `default`, or with `required=False`, may be left out."""
    optional = "default" in more or more.get("required") is False
    return click.argument(
        name,
        cls=_Argument,
        explanation=explanation,
        metavar=f"[{metavar}]" if optional else metavar,
        **more,
    )


def option(*names: str, **more: Any) -> Callable[[F], F]:
    """An option; a default that says something is shown."""
    shown = more.get("default") not in (None, False, "") and "flag_value" not in more
    return click.option(*names, **{"show_default": shown, **more})


def flag(*names: str, help: str) -> Callable[[F], F]:  # noqa: A002 - as click calls it
    """An option without a value."""
    return click.option(*names, is_flag=True, help=help)


def command(
    *examples: str, name: str | None = None
) -> Callable[[Callable[..., object]], _Arguments]:
    """Make a function a command: its docstring is the help, its result the exit code.

    Args:
        *examples: Lines that show how it is called.
        name: Name of the command, where it is not that of the function.

    Returns:
        A decorator that gives a command of click.
    """
    epilog = "  Example:\n" + "\n".join(f"    {each}" for each in examples) if examples else None

    def decorate(function: Callable[..., object]) -> _Arguments:
        made: _Arguments = click.command(
            name or function.__name__.replace("_", "-"),
            cls=_Arguments,
            epilog=epilog,
            context_settings=_SETTINGS,
        )(_answering(function))
        return made

    return decorate


def _answering(function: Callable[..., object]) -> Callable[..., None]:
    """Turn whatever a command raises into a message, a JSON document and an exit code."""

    @functools.wraps(function)
    def run(**values: Any) -> None:
        try:
            code = function(**values)
        except (SystemExit, OutputError, click.exceptions.Exit, click.Abort):
            raise
        except BaseException as error:  # a panic of a client library is no Exception
            if is_usage(error):  # the parser words it itself
                raise
            code = complain(error, as_json=bool(values.get("as_json")))
            raise click.exceptions.Exit(code) from error
        if code:
            raise click.exceptions.Exit(int(bool(code)))

    return run


class Group(click.Group):
    """Commands of one file that share a first word, such as `holdfast guard save`."""

    command_class = _Arguments

    def add(self, *commands: click.Command) -> None:
        """Add commands, in the order in which they are listed."""
        for each in commands:
            self.add_command(each)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were added."""
        del ctx
        return [*self.commands]


def group(name: str, help: str) -> Group:  # noqa: A002 - as click calls it
    """A command that has commands."""
    return Group(name=name, help=help, no_args_is_help=True, context_settings=_SETTINGS)


# All commands


class LazyGroup(click.Group):
    """Knows which commands there are without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Those of the folder: known ones in order of use, then the others by name."""
        del ctx
        return [name for names in sections().values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, imported now."""
        names = self.list_commands(ctx)
        if cmd_name in RENAMED:
            raise click.UsageError(f"use `holdfast {RENAMED[cmd_name]}`", ctx=ctx)
        if cmd_name not in names:
            self.commands = dict.fromkeys(names, self)  # the parser says what was perhaps meant
            return None
        return load(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """All commands by section, each with the first line of its file."""
        del ctx
        widest = max(len(name) for names in sections().values() for name in names)
        for title, names in sections().items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{widest}}", summary(name)) for name in names])


def sections() -> dict[str, list[str]]:
    """By title, the commands whose file is there; those that no section names come last."""
    files = sorted(name.removesuffix(".py") for name in os.listdir(FOLDER) if name.endswith(".py"))
    names = [name.replace("_", "-") for name in files if not name.startswith("_")]
    known = {name for section in SECTIONS.values() for name in section}
    everything = {**SECTIONS, "More": tuple(name for name in names if name not in known)}
    ordered = {
        title: [name for name in section if name in names] for title, section in everything.items()
    }
    return {title: section for title, section in ordered.items() if section}


def summary(name: str) -> str:
    """What a command does, in one line: the first one of its file."""
    with open(_path(name), encoding="utf-8") as file:
        return file.readline().strip().strip('"')


def load(name: str) -> click.Command:
    """Import the file of a command."""
    stem = name.replace("-", "_")
    loaded: click.Command = getattr(import_module(f"{PACKAGE}.{stem}"), stem)
    return loaded


def _path(name: str) -> str:
    return os.path.join(FOLDER, f"{name.replace('-', '_')}.py")


def _version(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001
    del parameter
    if value:
        write(f"holdfast {__version__}\n")
        context.exit()


def _completion(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001
    if value:
        from holdfast.cli.completion import install, script

        install() if parameter.name == "install_completion" else write(script())
        context.exit()


@click.group(
    cls=LazyGroup,
    name="holdfast",
    epilog="Exit 0: good. 1: a problem was found. 2: wrong usage. 130: Ctrl-C. "
    "--json prints one document.",
    no_args_is_help=True,
    context_settings=_SETTINGS,
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Print the version.",
)
@click.option(
    "--install-completion",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_completion,
    help="Install completion for the current shell.",
)
@click.option(
    "--show-completion",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_completion,
    help="Show completion for the current shell.",
)
def app() -> None:
    """Checkpoints of stateful pipelines: list, verify, query, restore. No cluster needed."""
