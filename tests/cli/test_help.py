"""Help comes at once, shows before it explains, and tells the truth."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
import typer

from tenuto.cli import exit_codes
from tenuto.cli.command_tree import root
from tenuto.cli.work import activities, tasks
from tenuto.errors import Conflict, Forbidden, Invalid, NotFound, SchemaMismatch, Unavailable, UnknownJob
from tenuto.model.tasks import Status, TaskState
from tests.cli.conftest import Shell, bare_environment

HEAVY = ("asyncpg", "pydantic", "pydantic_settings", "rich", "structlog", "asyncio", "tenuto.app")


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and group of commands, by the words that lead to it."""

    def below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield path, command
        for name, child in getattr(command, "commands", {}).items():
            yield from below(f"{path} {name}", child)

    yield from below("tenuto", typer.main.get_command(root))


def examples_of(command: Any) -> list[str]:
    """The examples its help begins with."""
    opening, _, rest = command.help.partition("\b\n")
    assert opening.strip() == "Examples:", command.help
    return [line.strip() for line in rest.partition("\n\n")[0].splitlines()]


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from tenuto.cli import main\n"
        "try: main(['--help'])\n"
        f"except SystemExit: print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=bare_environment())
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "words", [["worker"], ["scheduler", "--name", "s1", "-q"], ["worker", "--home=/tmp/nowhere", "-o", "json"]]
)
def test_a_health_check_loads_next_to_nothing(words: list[str]) -> None:
    """It is asked every few seconds, in every container."""
    heavy = (*HEAVY, "typer", "platformdirs", "tenuto.settings", "tenuto.store")
    script = (
        "import sys; from tenuto.cli import main\n"
        f"try: main(['health', *{words!r}])\n"
        f"except SystemExit as end: print(end.code, [it for it in {heavy!r} if it in sys.modules], file=sys.stderr)"
    )
    environment = bare_environment(TENUTO_HOME="/tmp/nowhere")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stderr.splitlines()[-1] == "1 []"


def test_help_is_quick_or_costs_little_more_than_loading_what_it_stands_on() -> None:
    """By the processor's time, the best of a few: three tenths of a second; where everything is slow, two and a half
    times what it takes to load typer."""

    def cost(*arguments: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    costs = []
    for _ in range(5):
        costs.append(cost("-m", "tenuto", "--help"))
        if costs[-1] < 0.3:
            return
    assert min(costs) < 2.5 * min(cost("-c", "import typer.main") for _ in range(3))


def test_a_command_can_be_had_from_a_cold_start(shell: Shell) -> None:
    """Most tests run commands that begin warm: nothing is amiss there that was imported beforehand."""
    assert shell.cold("run", "double", "--input", '{"n": 1}', "-q").code == 0
    assert "no schedules yet" in shell.cold("schedule", "list").err
    assert shell.cold("doctor", "-o", "json").json["healthy"]


def test_the_command_alone_and_a_group_alone_show_their_help(open_shell: Callable[..., Shell]) -> None:
    shell = open_shell()
    for words in ((), ("task",), ("queue",)):
        ended = shell(*words)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out == shell(*words, "--help").out


def test_help_can_be_asked_for_first(open_shell: Callable[..., Shell]) -> None:
    shell = open_shell()
    assert shell("help", "task", "list").out == shell("task", "list", "--help").out
    assert shell("help", "exit-codes").out == shell("help").out == shell("--help").out


@pytest.mark.parametrize(
    ("path", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_help_begins_with_two_examples_that_can_be_typed(path: str, command: Any) -> None:
    examples = examples_of(command)
    assert len(examples) >= 2
    for example in examples:
        typed = example.partition(" | ")[0].partition(" > ")[0].partition("    ")[0]
        words = shlex.split(typed)[1:]
        found = typer.main.get_command(root)
        while words and words[0] in getattr(found, "commands", {}):
            found = found.commands[words.pop(0)]  # type: ignore[attr-defined]
        found.make_context("tenuto", words)


def test_the_help_lists_every_command_and_every_exit_code(open_shell: Callable[..., Shell]) -> None:
    shown = open_shell()("--help").out
    for path, _ in commands():
        if path.count(" ") == 1:
            assert f"  {path.split()[1]} " in shown
    for code, meaning in exit_codes.MEANINGS.items():
        assert f"{code}" in shown
        assert meaning in " ".join(shown.split())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Invalid("x"), exit_codes.USAGE),
        (NotFound("x"), exit_codes.NOT_FOUND),
        (UnknownJob("x"), exit_codes.NOT_FOUND),
        (Forbidden("x"), exit_codes.NOT_ALLOWED),
        (Conflict("x"), exit_codes.CONFLICT),
        (Unavailable("x"), exit_codes.DATABASE),
        (SchemaMismatch("x"), exit_codes.DATABASE),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: Any, code: int) -> None:
    assert exit_codes.code_of(error) == code
    assert code in exit_codes.MEANINGS


def test_the_states_that_can_be_asked_for_are_the_states_there_are() -> None:
    assert set(get_args(tasks.TaskState)) == set(TaskState)
    assert set(get_args(activities.Status)) == set(Status)


@pytest.mark.parametrize("words", [("version",), ("--version",)])
def test_the_version_is_told(open_shell: Callable[..., Shell], words: tuple[str, ...]) -> None:
    from tenuto import __version__

    ended = open_shell()(*words)
    assert (ended.code, ended.out) == (0, f"tenuto {__version__}\n")
