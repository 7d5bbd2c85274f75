"""``tenuto version`` and ``tenuto completion``: the version, and the completion of commands in a shell."""

from __future__ import annotations

from typing import Annotated, Literal

import click
from click.shell_completion import get_completion_class

from tenuto.cli.command import Session, command
from tenuto.cli.command_tree import root
from tenuto.cli.parameters import argument
from tenuto.version import __version__


@command(None, "version", "", "> version.txt", shared=())
def print_version(session: Session) -> None:
    """Print the version."""
    click.echo(f"tenuto {__version__}")


@command(None, "completion", "bash > tenuto.bash", "fish", shared=())
def print_completion(
    session: Session, shell: Annotated[Literal["bash", "zsh", "fish"], argument("bash|zsh|fish", "Name of the shell.")]
) -> None:
    """Print the completion script of a shell."""
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(root, {}, "tenuto", "_TENUTO_COMPLETE").source())
