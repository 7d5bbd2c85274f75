"""Every `tenuto …` command that pages and messages show or copy exists, with its options and arguments."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_commands import COMMANDS, find_error

SOURCES = ROOT / "src"
_IN_TEMPLATE = re.compile(r"<code>(tenuto [^<]+)</code>|data-copy=\"(tenuto [^\"]+)\"|\"(tenuto [a-z][^\"]+)\"")
_IN_TEXT = re.compile(r"`(tenuto [a-z][^`]*)`")
_PLACEHOLDER = re.compile(r"\{\{.*?\}\}|\{%.*?%\}")


def commands_in_template(file: Path) -> Iterator[str]:
    text = file.read_text(encoding="utf-8")
    for groups in _IN_TEMPLATE.findall(text):
        yield unescape(_PLACEHOLDER.sub("X", next(filter(None, groups))))


def commands_in_module(file: Path) -> Iterator[str]:
    """Yield the commands in the strings of a module: a whole string, or a part in backquotes. Not docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    unseen = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    unseen |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        yield from (found.removesuffix(" …") for found in _IN_TEXT.findall(text))
        command = re.match(r"tenuto ([a-z-]+)( |$)", text)
        if command and command[1] in COMMANDS and "\n" not in text and "`" not in text:
            yield from (part for part in text.split(", or ") if part.startswith("tenuto "))


def missing_argument(line: str) -> str | None:
    """Return the required argument or option that a command line lacks. A command without arguments is only named."""
    words = shlex.split(line.replace("…", "X"))[1:]
    path: list[str] = []
    while words and " ".join([*path, words[0]]) in COMMANDS:
        path.append(words.pop(0))
    command = COMMANDS[" ".join(path)]
    if not words or getattr(command, "commands", None):
        return None
    values = 0
    flags = {
        option for parameter in command.params if getattr(parameter, "is_flag", False) for option in parameter.opts
    }
    given = {word.partition("=")[0] for word in words if word.startswith("-")}
    follows_option = False
    for word in words:
        is_option = word.startswith("-") and word != "-"
        values += not is_option and not follows_option
        follows_option = is_option and "=" not in word and word not in flags
    for parameter in command.params:
        if not parameter.required:
            continue
        if parameter.param_type_name == "argument":
            values -= 1
            if values < 0:
                return f"{parameter.human_readable_name} is missing"
        elif given.isdisjoint(parameter.opts):
            return f"{parameter.opts[0]} is missing"
    return None


TEMPLATES = sorted(file for file in SOURCES.rglob("*.html") if list(commands_in_template(file)))
MODULES = sorted(file for file in SOURCES.rglob("*.py") if list(commands_in_module(file)))


def name_of(file: Path) -> str:
    return str(file.relative_to(SOURCES))


@pytest.mark.parametrize("file", TEMPLATES, ids=name_of)
def test_command_in_template_exists(file: Path) -> None:
    assert find_command_errors(commands_in_template(file)) == []


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_command_in_message_exists(file: Path) -> None:
    assert find_command_errors(commands_in_module(file)) == []


def test_commands_are_found_in_templates_and_modules() -> None:
    assert "tenuto log append LOG MESSAGE" in commands_in_module(SOURCES / "tenuto/web/views/record_lists.py")
    assert "tenuto schedule run NAME" in commands_in_template(SOURCES / "tenuto/web/templates/pages/executions.html")
    assert len(TEMPLATES) > 20
    assert len(MODULES) > 20


@pytest.mark.parametrize(
    "line", ["tenuto once create X", "tenuto run --wait", "tenuto run JOB --inputs X", "tenuto task show A B"]
)
def test_command_that_the_cli_refuses_is_found(line: str) -> None:
    assert find_command_errors([line]) != []


def find_command_errors(lines: Iterator[str] | list[str]) -> list[str]:
    return [f"{line}: {error}" for line in lines if (error := find_error(line) or missing_argument(line))]
