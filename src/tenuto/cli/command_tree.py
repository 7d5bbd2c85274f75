"""The command `tenuto`: its table of commands, lazy loading of their modules, usage errors.

A command module is imported only when its command is called; `tenuto --help` is printed from the table. The commands of
extensions are added when an unknown command is called, and for the help.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

import click

from tenuto.cli import exit_codes
from tenuto.cli.output import discard_stdout
from tenuto.cli.parameters import parameter_label
from tenuto.errors import Conflict, Invalid
from tenuto.extension.contract import CommandEntry
from tenuto.operations.built_in_extensions import BUILT_IN
from tenuto.paths import read_settings_file
from tenuto.version import __version__

_COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Services": {
        "up": ("admin.services:run_all_services", "Run scheduler, worker and web service in one process"),
        "dev": ("admin.dev_services:run_for_development", "Run all services, print results, and restart on changes"),
        "worker": ("admin.services:workers", "Run a worker process"),
        "scheduler": ("admin.services:run_scheduler", "Run a scheduler process"),
        "web": ("admin.services:run_web", "Run the web service"),
        "health": ("admin.services:check_health", "Check the health of services on this machine"),
    },
    "Schedules": {
        "schedule": ("definitions.schedules:schedules", "Create, inspect, change and run schedules"),
        "execution": ("work.executions:executions", "List, watch, cancel, pause and retry runs of schedules"),
        "plan": ("definitions.plans:plan_definitions", "Show what applying definition files would change"),
        "apply": ("definitions.plans:apply_definitions", "Apply definition files in one transaction"),
        "simulate": ("definitions.simulation:simulate", "Simulate the schedules: runs, conflicts and skipped runs"),
        "cron": ("definitions.cron:cron_commands", "Explain cron lines"),
        "import": ("definitions.imports:imports", "Print definition files from other schedulers"),
    },
    "Manifests": {
        "manifest": ("definitions.manifests:manifests", "Create, inspect, change and run manifests (job definitions)"),
        "batch": ("work.batches:batches", "Run a manifest for many rows, and control them as one batch"),
        "dead-letter": ("work.dead_letters:dead_letters", "List dead letters, retry or acknowledge them"),
    },
    "Work": {
        "status": ("admin.status:show_status", "Show what is running and waiting, and what needs attention"),
        "series": ("admin.series:show_series", "Show how many attempts ended when, with outcomes, waits and durations"),
        "search": (
            "work.search:search_objects",
            "Find objects by the beginning of their id, or by a part of their name",
        ),
        "history": (
            "work.search:show_history",
            "List the changes of one object, newest first: who, when, what and why",
        ),
        "run": ("work.jobs:run_job", "Run a job: put a task into the job's queue"),
        "job": ("work.jobs:jobs", "List the jobs of an app"),
        "task": ("work.tasks:tasks", "List tasks, explain why they wait, cancel or retry them"),
        "activity": ("work.tasks:activities", "List and show past attempts"),
        "queue": ("work.tasks:queues", "List queues, limit and pause them"),
    },
    "Administration": {
        "key": ("admin.credentials:api_keys", "Create, list, rotate and revoke API keys"),
        "invitation": (
            "admin.invitations_and_sessions:invitations",
            "Invite people to the dashboard, list and revoke invitations",
        ),
        "session": ("admin.invitations_and_sessions:sessions", "List and end browser sessions"),
        "login": ("admin.credentials:create_login_link", "Print a link that logs a browser in to the web service"),
        "audit": ("admin.audit_log:audit_log", "List, verify and export the audit log"),
        "secret": ("admin.credentials:secrets", "Store secrets for steps and jobs"),
        "backup": ("admin.backups:create_backup", "Write the database and all keys to one file"),
        "restore": ("admin.backups:restore_backup", "Restore a backup into an empty database, and write its key files"),
        "migrate": ("admin.services:migrate_database", "Migrate the database schema to this version"),
        "completion": ("admin.version_and_completion:print_completion", "Print the completion script of a shell"),
        "version": ("admin.version_and_completion:print_version", "Print the version"),
    },
}
"""By section of the help: name of the command, target below `tenuto.cli`, first line of its help."""
CORE_COMMANDS = [
    CommandEntry(name, section, help, f"tenuto.cli.{target}")
    for section, commands in _COMMANDS.items()
    for name, (target, help) in commands.items()
]
CORE_COMMANDS += [entry for extension in BUILT_IN for entry in extension.commands()]
"""The commands of Tenuto. A test compares their help lines with the commands."""

_HELP = """Examples:

\b
  tenuto up --app tasks:app                       run everything in one process
  tenuto run resize --app tasks:app --input '{"width": 80}' --wait

A durable scheduler for Python on PostgreSQL.
"""
_EPILOG = "Results go to stdout, messages and errors to stderr. TENUTO_DEBUG=1 prints tracebacks of errors."


def _disabled_extensions() -> Sequence[str]:
    """Return the setting. It is read here, because the main help must not import all settings."""
    found = os.environ.get("TENUTO_DISABLED_EXTENSIONS", read_settings_file().get("disabled_extensions", ()))
    return [name.strip() for name in (found.split(",") if isinstance(found, str) else found)]


class LazyGroup(click.Group):
    """Group that imports a command's module when the command is called."""

    def __init__(self, entries: Iterable[CommandEntry], **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.entries = {entry.name: entry for entry in entries}
        self._has_extension_entries = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        self.load_extension_entries()
        return list(self.entries)

    def load_extension_entries(self) -> None:
        """Add the commands of installed extensions. Only their entry points are imported."""
        if self._has_extension_entries:
            return
        self._has_extension_entries = True
        from tenuto.extension.registry import ExtensionRegistry  # most calls do not need it

        registry = ExtensionRegistry(disabled=_disabled_extensions)
        for contribution in registry.collect("commands", lambda extension: extension.commands()):
            with registry.isolate(contribution.extension, "commands"):
                register_commands([contribution.value])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.entries:
            self.load_extension_entries()
        if cmd_name in self.entries and cmd_name not in self.commands:
            self.add_command(_import_command(self.entries[cmd_name]), cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click suggests only commands that are loaded
            raise click.NoSuchCommand(error.command_name, possibilities=self.entries, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.load_extension_entries()
        width = max(map(len, self.entries))
        for section in dict.fromkeys(entry.section for entry in self.entries.values()):
            with formatter.section(section):
                own = [entry for entry in self.entries.values() if entry.section == section]
                formatter.write_dl([(entry.name.ljust(width), entry.help) for entry in own])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in exit_codes.MEANINGS.items()])
        formatter.write_paragraph()
        formatter.write_text(_EPILOG)


def _import_command(entry: CommandEntry) -> click.Command:
    """Import a command. An extension whose command cannot be imported is named instead of a traceback."""
    module, _, attribute = entry.target.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # code of an extension may raise anything
        if entry in CORE_COMMANDS or exit_codes.is_debug_enabled():
            raise
        raise Invalid(
            f"the command {entry.name!r} cannot be loaded from {entry.target}: {type(error).__name__}: {error}",
            code="cli.command.failed",
            remedy="correct or uninstall the extension; TENUTO_DEBUG=1 shows the traceback",
        ) from error
    command: click.Command = getattr(found, "click_command", found)
    return command


@click.pass_context
def _print_help(context: click.Context, *, version: bool) -> None:
    if version:
        click.echo(f"tenuto {__version__}")
    elif context.invoked_subcommand is None:
        click.echo(context.get_help())


root = LazyGroup(
    CORE_COMMANDS,
    name="tenuto",
    help=_HELP,
    callback=_print_help,
    invoke_without_command=True,
    params=[click.Option(["--version"], is_flag=True, help="Print the version.")],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def register_commands(entries: Iterable[CommandEntry]) -> None:
    """Add commands of an extension to `tenuto`. They come after the others of their section."""
    for entry in entries:
        if entry.name in root.entries:
            problem, remedy = f"command {entry.name!r} of {entry.target} exists already", "rename the command"
            raise Conflict(problem, code="cli.command.duplicate", remedy=remedy)
        root.entries[entry.name] = entry


def build_full_tree() -> LazyGroup:
    """Return `tenuto` with all its commands loaded, for tests and the generated reference."""
    context = click.Context(root)
    root.commands = {name: command for name in root.entries if (command := root.get_command(context, name))}
    return root


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    if arguments[:1] == ["help"]:  # `tenuto help task list`; `tenuto help exit-codes` is the main help
        arguments = [*(argument for argument in arguments[1:] if argument != "exit-codes"), "--help"]
    try:
        code = root.main(list(arguments), prog_name="tenuto", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _report_usage_error(error, as_json=_is_json_requested(arguments))
    except click.Abort:
        return exit_codes.INTERRUPTED
    except Invalid as error:
        if exit_codes.is_debug_enabled():
            raise
        exit_codes.print_error(
            error.message, error.remedy or "tenuto --help", code=error.code, as_json=_is_json_requested(arguments)
        )
        return exit_codes.FAILED
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


def _report_usage_error(error: click.ClickException, *, as_json: bool) -> int:
    message = " ".join(error.format_message().split())  # choices are on lines of their own
    context: click.Context | None = getattr(error, "ctx", None)
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
