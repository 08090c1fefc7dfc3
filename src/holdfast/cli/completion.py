"""Completion in the shell: click's own script, printed or installed.

Invariant: nothing of the user's is replaced; a file that has the line already is left alone.
"""

from __future__ import annotations

import os

from holdfast.cli.output import write
from holdfast.errors import InvalidInputError

_VARIABLE = "_HOLDFAST_COMPLETE"
_FILES = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/holdfast.fish",
}
_LINES = {
    "bash": f'eval "$({_VARIABLE}=bash_source holdfast)"',
    "zsh": f'eval "$({_VARIABLE}=zsh_source holdfast)"',
    "fish": f"{_VARIABLE}=fish_source holdfast | source",
}


def shell() -> str:
    """The user's shell, by the environment."""
    name = os.path.basename(os.environ.get("SHELL", ""))
    if name not in _LINES:
        raise InvalidInputError(
            "there is no completion for this shell",
            kind="unknown_shell",
            shell=name or "unknown",
            known=",".join(_LINES),
            remedy="set SHELL to one of these",
        )
    return name


def script() -> str:
    """The script that the shell reads."""
    from click.shell_completion import get_completion_class

    from holdfast.cli.app import app

    made = get_completion_class(shell())
    if made is None:
        raise InvalidInputError(
            "there is no completion for this shell", kind="unknown_shell", shell=shell()
        )
    return made(app, {}, "holdfast", _VARIABLE).source() + "\n"


def install() -> None:
    """Add one line to the start file of the user's shell."""
    name = shell()
    path, line = os.path.expanduser(_FILES[name]), _LINES[name]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        file.seek(0)
        if line not in file.read():
            file.write(f"\n{line}\n")
    write(f"{name} completes holdfast in new shells: {path}\n")
