"""Every `tenuto …` command in the documentation and the deployment files exists, with its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tenuto_identity.cli.commands import identity
from tenuto_notifications.commands import notification
from tests.docs.generate import commands, walk_commands
from tests.docs.pages import ROOT, console_commands, inline_commands, page_name, pages

DEPLOYMENT_FILES = [
    ROOT / "deploy" / "Dockerfile",
    ROOT / "deploy" / "compose.yaml",
    *(ROOT / "deploy").rglob("*.service"),
]
COMMANDS = {
    **commands(),
    **dict(walk_commands("identity", identity)),
    **dict(walk_commands("notification", notification)),
}
"""The tests disable the installed extensions, so their commands are added."""


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_commands_of_page_exist(page: Path) -> None:
    shown = [line for line in console_commands(page) if line.startswith("tenuto ")] + inline_commands(page)
    assert find_errors(shown) == []


@pytest.mark.parametrize("file", DEPLOYMENT_FILES, ids=page_name)
def test_commands_of_deployment_file_exist(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    lines = re.findall(r"^ExecStart=\S+/(tenuto .+)$", text, re.MULTILINE)
    for found in re.findall(r"(?:CMD|test:|command:) (\[.+?\])", text):
        arguments = [argument for argument in re.split(r'[\[\], "]+', found) if argument not in ("", "CMD")]
        if arguments[0] != "pg_isready":
            lines.append(" ".join(arguments if arguments[0] == "tenuto" else ["tenuto", *arguments]))
    assert lines
    assert find_errors(lines) == []


def find_errors(lines: list[str]) -> list[str]:
    return [f"{line}: {error}" for line in lines if (error := find_error(line))]


def find_error(line: str) -> str | None:
    """Return what the CLI would not accept in a command line, or None. Placeholders such as ID count as values."""
    arguments = shlex.split(re.split(r" [|>&] ?", line)[0].replace("…", "X"))[1:]
    path: list[str] = []
    while arguments and (" ".join([*path, arguments[0]])) in COMMANDS:
        path.append(arguments.pop(0))
    command = COMMANDS[" ".join(path)]
    if arguments and not arguments[0].startswith("-") and getattr(command, "commands", None):
        return f"there is no command {arguments[0]!r}"
    return find_argument_error(command, arguments)


def find_argument_error(command: Any, arguments: list[str]) -> str | None:
    options = {
        spelling: parameter
        for parameter in command.params
        for spelling in (*parameter.opts, *parameter.secondary_opts)
        if parameter.param_type_name == "option"
    }
    options |= {"--help": None, "-h": None}
    free_places = sum(
        1000 if parameter.nargs == -1 else 1 for parameter in command.params if parameter.param_type_name == "argument"
    )
    while arguments:
        argument = arguments.pop(0)
        if not argument.startswith("-") or argument == "-":
            free_places -= 1
            continue
        spelling, _, value = argument.partition("=")
        if spelling not in options:
            return f"there is no option {spelling}"
        parameter = options[spelling]
        if parameter is not None and not parameter.is_flag and not value:
            if not arguments:
                return f"{spelling} needs a value"
            arguments.pop(0)
    return "too many arguments" if free_places < 0 else None
