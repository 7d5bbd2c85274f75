"""An entry in the table of commands. Apart, because every call of ``tenuto`` imports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command or a group of commands directly under ``tenuto``, imported when it is called."""

    name: str
    section: str
    """Heading in ``tenuto --help``."""
    help: str
    """First line of its help."""
    target: str
    """``module:attribute`` of the click command or group, or of a function made a command by `tenuto.cli.command`."""
