"""The command `tenuto`: its table of commands, lazy loading of their modules, usage errors.

A command module is imported only when one of its commands is called. `tenuto --help` is printed from the table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, TyperException
from typer.main import get_command_from_info, get_group_from_info

from tenuto.cli import exit_codes
from tenuto.cli.command import flag, parameter_label, top_level
from tenuto.cli.output import discard_stdout
from tenuto.version import __version__

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Services": {
        "up": ("admin.services", "Run all services in one process: scheduler, worker and web service"),
        "worker": ("admin.services", "Run a worker process"),
        "scheduler": ("admin.services", "Run a scheduler process"),
        "web": ("admin.services", "Run the web service"),
        "health": ("admin.services", "Check the health of services on this machine"),
    },
    "Schedules": {
        "schedule": ("definitions.schedules", "Create, inspect, change and run schedules"),
        "execution": ("work.executions", "List, watch, cancel, pause and retry runs of schedules"),
        "plan": ("definitions.plans", "Show what applying definition files would change, without changing it"),
        "apply": ("definitions.plans", "Apply the schedules and manifests of definition files in one transaction"),
        "simulate": (
            "definitions.simulate",
            "Simulate the schedules: which runs would fire when, and which conflicts would occur",
        ),
        "cron": ("definitions.cron", "Explain cron lines"),
    },
    "Manifests": {
        "manifest": ("definitions.manifests", "Create, inspect, change and run manifests (job definitions)"),
        "batch": ("work.batches", "Run a manifest for many rows, and control them as one batch"),
        "dead-letter": ("work.dead_letters", "List dead letters, retry or acknowledge them"),
    },
    "Work": {
        "run": ("work.jobs", "Run a job: put a task into the job's queue"),
        "once": ("work.one_shots", "Run something once, at a given time"),
        "job": ("work.jobs", "List the jobs of an app"),
        "task": ("work.tasks", "List tasks, explain why they wait, cancel them"),
        "activity": ("work.tasks", "List and show past attempts"),
        "log": ("admin.logs", "Read named logs and append to them"),
        "queue": ("work.tasks", "List queues, limit and pause them"),
    },
    "Administration": {
        "key": ("admin.credentials", "Create, list and revoke API keys"),
        "login": ("admin.credentials", "Print a link that logs a browser in to the web service"),
        "audit": ("admin.audit_log", "List, verify and export the audit log"),
        "secret": ("admin.credentials", "Store secrets for steps and jobs"),
        "doctor": ("admin.doctor", "Check the installation for problems"),
        "migrate": ("admin.services", "Migrate the database schema to this version"),
        "version": ("", "Print the version"),
    },
}
"""By section of the help: command -> (module below `tenuto.cli`, first line of its help). A test compares the texts."""

_MODULES = {name: module for section in COMMANDS.values() for name, (module, _) in section.items() if module}

_HELP = """Examples:

\b
  tenuto up --app tasks:app                       run everything in one process
  tenuto run resize --app tasks:app --input '{"width": 80}' --wait

A durable scheduler for Python on PostgreSQL.
"""


class LazyGroup(TyperGroup):
    """Group that imports a command's module when the command is called (Click's LazyGroup pattern)."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _MODULES and cmd_name not in self.commands:
            import_module(f"tenuto.cli.{_MODULES[cmd_name]}")
            self.add_command(_build_command(cmd_name))
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except TyperException as error:  # Typer only suggests commands that are loaded
            if similar := get_close_matches(args[0], self.list_commands(ctx)):
                error.message = f"no such command {args[0]!r}; did you mean {', '.join(map(repr, similar))}?"
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for heading, section in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in section.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in exit_codes.MEANINGS.items()])
        formatter.write_paragraph()
        formatter.write_text(
            "Results go to stdout, messages and errors to stderr. TENUTO_DEBUG=1 prints a traceback instead of an error"
            " message."
        )


def _build_command(name: str) -> Any:
    for command in top_level.registered_commands:
        if command.name == name:
            return get_command_from_info(command, pretty_exceptions_short=False, rich_markup_mode=None)
    group = next(group for group in top_level.registered_groups if group.name == name)
    return get_group_from_info(group, pretty_exceptions_short=False, rich_markup_mode=None, suggest_commands=True)


root = typer.Typer(
    name="tenuto",
    cls=LazyGroup,
    help=_HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@root.callback(invoke_without_command=True)
def _print_help(
    context: typer.Context, version: Annotated[bool, flag("Print the version.", "--version")] = False
) -> None:
    if version:
        _print_version()
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@root.command(
    "version",
    help="Examples:\n\n\b\n  tenuto version\n  tenuto --version\n\nPrint the version.",
    short_help="Print the version",
)
def _print_version() -> None:
    typer.echo(f"tenuto {__version__}")


def build_full_tree() -> TyperGroup:
    """Return `tenuto` with all its commands loaded, for tests and the generated reference."""
    tree = typer.main.get_command(root)
    assert isinstance(tree, LazyGroup)
    for name in _MODULES:
        tree.get_command(None, name)
    tree.commands = {name: tree.commands[name] for name in tree.list_commands(None)}
    return tree


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    if arguments[:1] == ["help"]:  # `tenuto help task list`; `tenuto help exit-codes` is the main help
        arguments = [*(argument for argument in arguments[1:] if argument != "exit-codes"), "--help"]
    try:
        code = root(arguments, prog_name="tenuto", standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        return _report_usage_error(error, as_json=_is_json_requested(arguments))
    except Abort:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        discard_stdout()
        return exit_codes.FAILED
    except OSError as error:  # output that could not be written, or a file error that no command handles
        if exit_codes.is_debug_enabled():
            raise
        discard_stdout()
        remedy = "set TENUTO_DEBUG=1 to see the traceback"
        exit_codes.print_error(str(error), remedy, code="cli.io.failed", as_json=_is_json_requested(arguments))
        return exit_codes.FAILED
    return code if isinstance(code, int) else exit_codes.OK


def _report_usage_error(error: TyperException, *, as_json: bool) -> int:
    message = error.format_message().replace("Value error, ", "")
    context: typer.Context | None = getattr(error, "ctx", None)
    path = context.command_path if context else "tenuto"
    parameter = getattr(error, "param", None)
    exit_codes.print_error(
        message[:1].lower() + message[1:],
        f"{path} --help",
        code="cli.usage.invalid",
        field=None if parameter is None else parameter_label(parameter),
        as_json=as_json,
    )
    return exit_codes.adjust_for_command(error.exit_code, path)


def _is_json_requested(arguments: Sequence[str]) -> bool:
    """Return whether arguments that could not be parsed ask for JSON output."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return any(
        argument in ("-ojson", "--output=json") or (argument in ("-o", "--output") and following == "json")
        for argument, following in pairs
    )
