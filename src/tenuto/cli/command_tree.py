"""The tree of commands, and what surrounds them: help, usage errors, a closed pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, TyperException

from tenuto.cli import exit_codes
from tenuto.cli.admin import api_keys, audit_log, doctor, logs, queues, secrets, services, workers
from tenuto.cli.definitions import cron, manifests, plans, schedules, simulate
from tenuto.cli.work import activities, batches, dead_letters, executions, jobs, one_shots, tasks
from tenuto.version import __version__

_SECTIONS = {
    "Services": ("up", "worker", "scheduler", "web", "health"),
    "Schedules": ("schedule", "execution", "plan", "apply", "simulate", "cron"),
    "Manifests": ("manifest", "batch", "dead-letter"),
    "Work": ("run", "once", "job", "task", "activity", "log", "queue"),
    "Upkeep": ("key", "login", "audit", "secret", "doctor", "migrate", "version"),
}

_HELP = """Examples:

\b
  tenuto up --app tasks:app                       run everything in one process
  tenuto run resize --app tasks:app --input '{"width": 80}' --wait

A durable scheduler for Python on PostgreSQL: runs work to its end, and can prove it.
"""


class _Sections(TyperGroup):
    """Commands under headings instead of in one long list."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(len(name) for names in _SECTIONS.values() for name in names)
        for heading, names in _SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(name.ljust(width), self.commands[name].get_short_help_str(limit=90)) for name in names]
                )

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in exit_codes.MEANINGS.items()])
        formatter.write_paragraph()
        formatter.write_text(
            "Answers go to stdout, talk to stderr. TENUTO_DEBUG=1 shows a traceback instead of an error line."
        )


root = typer.Typer(
    name="tenuto",
    cls=_Sections,
    help=_HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
_PARTS = (
    services, workers, schedules, plans, simulate, executions, cron, manifests, batches, dead_letters, jobs, one_shots, tasks,
    activities, logs, queues, api_keys, audit_log, secrets, doctor,
)  # fmt: skip
for _part in _PARTS:
    _part.add_to(root)


@root.callback(invoke_without_command=True)
def _nothing_asked(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Say which version this is.")] = False,
) -> None:
    if version:
        _say_version()
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@root.command(
    "version",
    help="Examples:\n\n\b\n  tenuto version\n  tenuto --version\n\nSay which version this is.",
    short_help="Say which version this is",
)
def _say_version() -> None:
    typer.echo(f"tenuto {__version__}")


def _needed(words: Sequence[str]) -> typer.Typer:
    """The part of the tree the words lead to: making all of it ready takes longer than most commands do."""
    if "_TENUTO_COMPLETE" in os.environ:  # a shell asks what could come next, at any depth
        return root
    first = words[0] if words else "--help"
    part = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    part.info, part.registered_callback = root.info, root.registered_callback
    if first in ("-h", "--help"):
        _name_all(part)
        return part
    part.registered_commands = [each for each in root.registered_commands if each.name == first]
    part.registered_groups = [each for each in root.registered_groups if each.name == first]
    return part if part.registered_commands or part.registered_groups else root


def _name_all(part: typer.Typer) -> None:
    """Every command by its name and what it is for, and nothing behind it."""
    for command in root.registered_commands:
        part.command(command.name, short_help=command.short_help)(_nothing)
    for group in root.registered_groups:
        alone = group.typer_instance.registered_callback if group.typer_instance else None
        part.command(group.name, short_help=alone.short_help if alone else None)(_nothing)


def _nothing() -> None: ...


def run(words: Sequence[str]) -> int:
    """Run a command line; its exit code."""
    if words[:1] == ["help"]:  # `tenuto help task list` is how some ask; the exit codes stand in the first help
        words = [*(word for word in words[1:] if word != "exit-codes"), "--help"]
    try:
        code = _needed(words)(words, prog_name="tenuto", standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        message = error.format_message()
        context: typer.Context | None = getattr(error, "ctx", None)
        message = message.replace("Value error, ", "")
        exit_codes.complain(
            message[:1].lower() + message[1:], f"{context.command_path if context else 'tenuto'} --help"
        )
        return exit_codes.of_command(error.exit_code, context.command_path if context else "")
    except Abort:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        exit_codes.let_go_of_stdout()
        return exit_codes.FAILED
    except OSError as error:  # of a help, a list or an export that could not be written, or of a file nobody thought of
        if exit_codes.debugging():
            raise
        exit_codes.let_go_of_stdout()
        exit_codes.complain(str(error), "see where it comes from with TENUTO_DEBUG=1")
        return exit_codes.FAILED
    return code if isinstance(code, int) else exit_codes.OK
