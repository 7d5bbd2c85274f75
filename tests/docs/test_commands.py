"""Every `tenuto …` that the documentation shows is a command there is, with options it has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.docs.generate import commands
from tests.docs.pages import ROOT, mentioned, name, pages, typed

DEPLOYED = [ROOT / "deploy" / "Dockerfile", ROOT / "deploy" / "compose.yaml", *(ROOT / "deploy").rglob("*.service")]
KNOWN = commands()


@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_command_shown_is_one_the_command_line_knows(page: Path) -> None:
    shown = [line for line in typed(page) if line.startswith("tenuto ")] + mentioned(page)
    assert [f"{line}: {what}" for line in shown if (what := trouble_with(line))] == []


@pytest.mark.parametrize("file", DEPLOYED, ids=name)
def test_every_command_of_a_deployment_is_one_the_command_line_knows(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    shown = re.findall(r"^ExecStart=\S+/(tenuto .+)$", text, re.MULTILINE)
    for found in re.findall(r"(?:CMD|test:|command:) (\[.+?\])", text):
        words = [word for word in re.split(r'[\[\], "]+', found) if word not in ("", "CMD")]
        if words[0] != "pg_isready":
            shown.append(" ".join(words if words[0] == "tenuto" else ["tenuto", *words]))
    assert shown
    assert [f"{line}: {what}" for line in shown if (what := trouble_with(line))] == []


def trouble_with(line: str) -> str | None:
    """What the command line would not understand, if anything; placeholders such as ID stand for values."""
    words = shlex.split(re.split(r" [|>&] ?", line)[0].replace("…", "X"))[1:]
    path: list[str] = []
    while words and (" ".join([*path, words[0]])) in KNOWN:
        path.append(words.pop(0))
    command = KNOWN[" ".join(path)]
    if words and not words[0].startswith("-") and getattr(command, "commands", None):
        return f"there is no {words[0]!r}"
    return trouble_with_options(command, words)


def trouble_with_options(command: Any, words: list[str]) -> str | None:
    options = {
        spelling: parameter
        for parameter in command.params
        for spelling in (*parameter.opts, *parameter.secondary_opts)
        if parameter.param_type_name == "option"
    }
    options |= {"--help": None, "-h": None}
    places = sum(
        1000 if parameter.nargs == -1 else 1 for parameter in command.params if parameter.param_type_name == "argument"
    )
    while words:
        word = words.pop(0)
        if not word.startswith("-") or word == "-":
            places -= 1
            continue
        spelling, _, value = word.partition("=")
        if spelling not in options:
            return f"there is no option {spelling}"
        parameter = options[spelling]
        if parameter is not None and not parameter.is_flag and not value:
            if not words:
                return f"{spelling} needs a value"
            words.pop(0)
    return "too many words" if places < 0 else None
