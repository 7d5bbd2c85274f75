"""Help of the command line: it is fast, starts with valid examples and matches the commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenuto.cli import exit_codes
from tenuto.cli.command_tree import CORE_COMMANDS, build_full_tree, register_commands
from tenuto.errors import Conflict, Forbidden, Invalid, NotFound, SchemaMismatch, Unavailable, UnknownJob
from tenuto.extension.contract import CommandEntry
from tests.cli.conftest import Shell, clean_environment
from tests.support.errors import raises_code

TREE = build_full_tree()
HEAVY = ("asyncpg", "pydantic", "pydantic_settings", "rich", "asyncio", "tenuto.app")


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and group of commands with the arguments that call it."""

    def walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield path, command
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(f"{path} {name}", child)

    yield from walk("tenuto", TREE)


def examples_of(command: Any) -> list[str]:
    """Return the examples at the start of the help."""
    opening, _, rest = command.help.partition("\b\n")
    assert opening.strip() == "Examples:", command.help
    return [line.strip() for line in rest.partition("\n\n")[0].splitlines()]


def test_main_help_imports_no_heavy_module() -> None:
    script = (
        "import sys; from tenuto.cli import main\n"
        "try: main(['--help'])\n"
        f"except SystemExit: print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=clean_environment())
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "arguments", [["worker"], ["scheduler", "--name", "s1", "-q"], ["worker", "--home=/tmp/nowhere", "-o", "json"]]
)
def test_health_check_imports_no_heavy_module(arguments: list[str]) -> None:
    """A container runs the health check every few seconds."""
    heavy = (*HEAVY, "click", "platformdirs", "tenuto.settings", "tenuto.store")
    script = (
        "import sys; from tenuto.cli import main\n"
        f"try: main(['health', *{arguments!r}])\n"
        f"except SystemExit as end: print(end.code, [it for it in {heavy!r} if it in sys.modules], file=sys.stderr)"
    )
    environment = clean_environment(TENUTO_HOME="/tmp/nowhere")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stderr.splitlines()[-1] == "1 []"


def test_main_help_costs_little_more_cpu_time_than_importing_click() -> None:
    """At most 0.2 s of CPU time, best of five; on a slow machine 4 times the import of click."""

    def cost(*arguments: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    costs = []
    for _ in range(5):
        costs.append(cost("-m", "tenuto", "--help"))
        if costs[-1] < 0.2:
            return
    assert min(costs) < 4 * min(cost("-c", "import click") for _ in range(3))


@pytest.mark.slow
def test_commands_run_in_a_fresh_interpreter(shell: Shell) -> None:
    """Most tests run commands in a process with preloaded modules, which hides missing imports."""
    assert shell.run_in_fresh_interpreter("run", "double", "--input", '{"n": 1}', "-q").code == 0
    assert "no schedules; create one" in shell.run_in_fresh_interpreter("schedule", "list").err
    assert shell.run_in_fresh_interpreter("doctor", "-o", "json").json["healthy"]


def test_tenuto_and_groups_without_subcommand_print_their_help(open_shell: Callable[..., Shell]) -> None:
    shell = open_shell()
    for arguments in ((), ("task",), ("queue",)):
        ended = shell(*arguments)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out == shell(*arguments, "--help").out


def test_help_word_before_a_command_prints_its_help(open_shell: Callable[..., Shell]) -> None:
    shell = open_shell()
    assert shell("help", "task", "list").out == shell("task", "list", "--help").out
    assert shell("help", "exit-codes").out == shell("help").out == shell("--help").out


@pytest.mark.parametrize(
    ("path", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_help_begins_with_two_valid_examples(path: str, command: Any) -> None:
    examples = examples_of(command)
    assert len(examples) >= 2
    for example in examples:
        typed = example.partition(" | ")[0].partition(" > ")[0].partition("    ")[0]
        arguments = shlex.split(typed)[1:]
        found: Any = TREE
        while arguments and arguments[0] in getattr(found, "commands", {}):
            found = found.commands[arguments.pop(0)]
        found.make_context("tenuto", arguments)


@pytest.mark.parametrize("entry", CORE_COMMANDS, ids=lambda entry: entry.name)
def test_command_table_has_the_first_help_line_of_each_command(entry: CommandEntry) -> None:
    assert TREE.commands[entry.name].short_help == entry.help


def test_command_of_an_extension_is_loaded_when_it_is_called(open_shell: Callable[..., Shell]) -> None:
    """It is listed in its section without being imported, and replaces no other command."""
    shell = open_shell()
    (shell.folder / "greeting.py").write_text(
        "import click\nprint('imported')\n@click.command()\ndef greet() -> None: click.echo('hello')\n"
    )
    (shell.folder / "start.py").write_text(
        "import sys\nfrom tenuto.cli.command_tree import CommandEntry, register_commands, run\n"
        "register_commands([CommandEntry('greet', 'Work', 'Say hello', 'greeting:greet')])\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )

    def start(*arguments: str) -> str:
        command = [sys.executable, "start.py", *arguments]
        return subprocess.run(command, cwd=shell.folder, capture_output=True, text=True, check=True).stdout

    section = start("--help").partition("Work:\n")[2].partition("\n\n")[0]
    assert "greet" in section.splitlines()[-1]
    assert "imported" not in section
    assert start("greet") == "imported\nhello\n"
    with raises_code("cli.command.duplicate", Conflict):
        register_commands([CommandEntry("task", "Work", "List tasks", "greeting:greet")])


def test_main_help_lists_every_command_and_exit_code(open_shell: Callable[..., Shell]) -> None:
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
        (Invalid("x", code="test.error"), exit_codes.USAGE),
        (NotFound("x", code="test.error"), exit_codes.NOT_FOUND),
        (UnknownJob("x", code="test.error"), exit_codes.NOT_FOUND),
        (Forbidden("x", code="test.error"), exit_codes.NOT_ALLOWED),
        (Conflict("x", code="test.error"), exit_codes.CONFLICT),
        (Unavailable("x", code="test.error"), exit_codes.DATABASE),
        (SchemaMismatch("x", code="test.error"), exit_codes.DATABASE),
    ],
)
def test_every_error_class_has_an_exit_code(error: Any, code: int) -> None:
    assert exit_codes.exit_code_of(error) == code
    assert code in exit_codes.MEANINGS


@pytest.mark.parametrize("arguments", [("version",), ("--version",)])
def test_version_is_printed(open_shell: Callable[..., Shell], arguments: tuple[str, ...]) -> None:
    from tenuto import __version__

    ended = open_shell()(*arguments)
    assert (ended.code, ended.out) == (0, f"tenuto {__version__}\n")
