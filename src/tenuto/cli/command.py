"""Frame of every command: registration, shared options, help with examples, one app per call, errors and exit codes.

A command is a function that takes a `Session` and its own options. `command` adds the shared options, runs the function
(in an event loop if it is a coroutine) and reports an error on stderr with an exit code.
"""

from __future__ import annotations

import asyncio
import getpass
import inspect
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import click
from click.core import ParameterSource

from tenuto import logs, paths
from tenuto.app import Tenuto
from tenuto.cli import exit_codes, output
from tenuto.cli.app_loader import load_app
from tenuto.cli.parameters import Declaration, declared_parameters, flag, option, parameter_label, table_parameters
from tenuto.errors import Invalid, TenutoError
from tenuto.model.access.actors import Actor
from tenuto.model.validation import check_text

F = TypeVar("F", bound=Callable[..., Any])


AppUse = Literal["database", "checks", "needed"]
"""What a command uses the app for that TENUTO_APP names. ``needed``: it runs or checks code of the app, and fails if
the app cannot be imported. ``checks``: it also covers the extensions of the app, and continues without them.
``database``: it imports the app only if no other setting names a database, because the app may name one in code. An app
named with --app is always imported."""
_APP_HELP = "Tenuto app to load; the working folder is on the import path. [TENUTO_APP, if code of the app is needed]"
_DATABASE_HELP = "PostgreSQL URL; without it, an embedded server in the home folder. [TENUTO_DATABASE]"
SHARED_OPTIONS: dict[str, Declaration] = {
    "app": option("MODULE:OBJECT", _APP_HELP, envvar="TENUTO_APP"),
    "database": option("URL", _DATABASE_HELP),
    "home": option("FOLDER", "Folder of the embedded database and the health files. [TENUTO_HOME]"),
    "output": option(
        "table|json|csv",
        "Output format; json also applies to errors, csv is for lists. (default: table)",
        *("--output", "-o"),
        type=Literal["table", "json", "csv"],
        default="table",
    ),
    "quiet": flag("No messages on stderr except errors.", "--quiet", "-q"),
}
_OUTPUT_WITHOUT_CSV = replace(
    SHARED_OPTIONS["output"],
    metavar="table|json",
    help="Output format; json also applies to errors. (default: table)",
    type=Literal["table", "json"],
)
ALL_SHARED = tuple(SHARED_OPTIONS)
_SESSION_FIELDS = {"app": "app_name", "home": "home_folder"}
WITHOUT_OUTPUT = ("app", "database", "home", "quiet")
_NON_EMPTY_OPTIONS = ("app", "database", "home", "queues", "queue", "name", "host")
_MAX_TEXT_LENGTH = 16 * 1024 * 1024
"""Longer than any command line; the operation that receives the text enforces its own limit."""
_INTERACTIVE_CONNECT_SECONDS = 1.0
"""An operator waits for the answer, so an unreachable database is reported soon. Services wait longer."""


@dataclass(kw_only=True)
class Session:
    """Values of the shared options, and the app that they select."""

    app_name: str | None = None
    database: str | None = None
    home_folder: str | None = None
    output: str = "table"
    quiet: bool = False
    is_service: bool = False
    app_use: AppUse = "database"
    is_app_from_environment: bool = False
    command_path: str = "tenuto"
    needs_database: bool = True

    @property
    def as_json(self) -> bool:
        return self.output == "json"

    @property
    def home(self) -> Path:
        """Home folder of this machine, for commands without app and database."""
        return paths.find_home(self.home_folder)

    @cached_property
    def app(self) -> Tenuto:
        """The app named with --app, or an app without jobs.

        See `AppUse` for the commands that import the app.
        """
        app = self._load_app()
        self._configure(app)
        return app

    def _configure(self, app: Tenuto) -> None:
        if not self.is_service and "connect_seconds" not in app.settings.model_fields_set:
            app.settings = app.settings.model_copy(update={"connect_seconds": _INTERACTIVE_CONNECT_SECONDS})
        creates_database = app.settings.database is None and not (app.settings.home / "postgres").exists()
        if creates_database and self.needs_database:
            remedy = "set TENUTO_DATABASE to use another server"
            self.print_message(f"creating an embedded PostgreSQL in {app.settings.home}; {remedy}")
        level = app.settings.log_level if self.is_service else "warning"
        logs.configure(app.settings.log_format, "warning" if self.quiet and level in ("debug", "info") else level)

    def _load_app(self) -> Tenuto:
        needed = self.app_use == "needed"
        if self.app_name is None or needed or not self.is_app_from_environment:
            try:
                return load_app(self.app_name, self.database, self.home_folder, is_service=self.is_service)
            except Invalid as error:
                if needed and (error.code or "").startswith("cli.app."):
                    error.message = f"`{self.command_path}` needs the app {self.app_name}: {error.message}"
                raise
        without_app = load_app(None, self.database, self.home_folder, is_service=False)
        if without_app.settings.database is not None and self.app_use == "database":
            return without_app
        try:
            return load_app(self.app_name, self.database, self.home_folder, is_service=False)
        except TenutoError as error:
            settings = without_app.settings
            if (
                settings.database is None and not (settings.home / "postgres").exists()
            ):  # never create a database by mistake
                remedy = "name the database with --database or TENUTO_DATABASE, or its folder with --home"
                problem = f"{error.message}; the app is needed here because no other setting names the database"
                raise Invalid(problem, code=error.code, field=error.field, remedy=remedy) from error
            self.print_message(f"continuing without the app {self.app_name}: {error.message}")
            return without_app

    def require_app(self) -> None:
        """Declare before the first use of the app that the command needs code of it."""
        self.app_use = "needed"

    @property
    def app_with_jobs(self) -> Tenuto:
        """The app named with --app. Raise Invalid if there is none or if it has no jobs."""
        if self.app_name is None:
            problem = "--app is required: it names the app that defines the jobs"
            remedy = "add --app MODULE:OBJECT, such as --app tasks:app for `app = Tenuto()` in tasks.py"
            raise Invalid(problem, code="cli.app.missing", field="--app", remedy=remedy)
        self.require_app()
        if not self.app.jobs.jobs_by_name:
            remedy = "register functions with @app.job, and import their modules where the app is defined"
            raise Invalid(f"app {self.app_name} has no jobs", code="cli.app.no_jobs", field="--app", remedy=remedy)
        return self.app

    @property
    def app_without_database(self) -> Tenuto:
        """The app named with --app, for a command that only runs or lists its code."""
        self.needs_database = False
        return self.app_with_jobs

    @contextmanager
    def as_user(self, reason: str | None = None) -> Iterator[Tenuto]:
        """Yield the app acting as the user of the terminal."""
        yield self.app.acting_as(Actor.user(login_name()), source="cli", reason=reason)

    def print_message(self, *lines: str) -> None:
        """Print lines on stderr, unless --quiet is given."""
        if not self.quiet:
            for line in lines:
                output.print_message(line)

    def report(self, document: Any, *messages: str, result: object = None) -> int:
        """Print the document as JSON, or for people the result on stdout and the messages on stderr; return OK."""
        if self.as_json:
            output.print_json(document)
            return exit_codes.OK
        if result is not None:
            output.print_text(str(result))
        self.print_message(*messages)
        return exit_codes.OK

    async def now(self) -> datetime:
        """Return the time by the clock of the app."""
        return (await self.app.open()).clock.now()

    async def close(self) -> None:
        """Close the app if it was used."""
        if "app" in self.__dict__:
            await self.app.close()


def group(name: str, description: str, *examples: str) -> click.Group:
    """Return a group of commands; without a subcommand it prints its help.

    ``examples`` are the arguments after the name of the group.
    """

    @click.pass_context
    def print_help(context: click.Context) -> None:
        if context.invoked_subcommand is None:
            click.echo(context.get_help())

    texts = _help_texts(f"tenuto {name}", examples, description)
    return click.Group(name, callback=print_help, invoke_without_command=True, **texts)


def command(
    group: click.Group | None,
    name: str | None,
    *examples: str,
    shared: tuple[str, ...] = ALL_SHARED,
    options: Mapping[str, Declaration] = MappingProxyType({}),
    is_list: bool = False,
    service: bool = False,
    app_use: AppUse = "database",
) -> Callable[[F], F]:
    """Make a command of the decorated function.

    Without a group it is a command directly under `tenuto`; without a name it runs when the group is called alone.
    ``examples`` are the arguments after the name of the command, ``options`` the ``**options`` of the function. A
    service has no option for the format of its output.
    """
    path = " ".join(part for part in ("tenuto", group and group.name, name) if part)

    shared = WITHOUT_OUTPUT if service else shared

    def register(function: F) -> F:
        common = {each: SHARED_OPTIONS[each] for each in shared}
        if "output" in common and not is_list:
            common["output"] = _OUTPUT_WITHOUT_CSV
        parameters = [*declared_parameters(function, options), *table_parameters(common)]
        callback = _callback(function, shared, service=service, app_use="needed" if service else app_use)
        texts = _help_texts(path, examples, inspect.getdoc(function) or "")
        if group is not None and name is None:
            group.callback, group.params, group.help, group.short_help = callback, parameters, *texts.values()
            return function
        built = click.Command(name, callback=callback, params=parameters, **texts)
        if group is not None:
            group.add_command(built)
        else:
            function.click_command = built  # type: ignore[attr-defined]
        return function

    return register


def _help_texts(path: str, examples: Sequence[str], description: str) -> dict[str, Any]:
    lines = "\n".join(f"  {path} {example}".rstrip() for example in examples)
    summary = description.partition("\n")[0].removesuffix(".")
    return {"help": f"Examples:\n\n\b\n{lines}\n\n{description}", "short_help": summary}


def _callback(
    function: Callable[..., Any], shared: tuple[str, ...], *, service: bool, app_use: AppUse
) -> Callable[..., None]:
    def run(**given: Any) -> None:
        context = click.get_current_context()
        if context.invoked_subcommand is not None:
            return  # a subcommand of this group was called
        options: dict[str, Any] = {
            name: (list(value) or None) if isinstance(value, tuple) else value for name, value in given.items()
        }
        values = {_SESSION_FIELDS.get(name, name): options.pop(name) for name in shared}
        session = Session(
            **values,
            is_service=service,
            app_use=app_use,
            is_app_from_environment=context.get_parameter_source("app") is ParameterSource.ENVIRONMENT,
            command_path=context.command_path,
        )

        def work() -> int | None:
            _reject_invalid_text(context)
            return _run_to_completion(session, function(session, **options))

        code = exit_codes.run_reporting_errors(work, context.command_path, as_json=session.as_json)
        if code != exit_codes.OK:
            context.exit(code)

    return run


def _run_to_completion(session: Session, answer: Any) -> int | None:
    """Return the exit code of a command; run it in an event loop if it is a coroutine."""
    if not inspect.iscoroutine(answer):
        code: int | None = answer
        return code

    async def run_and_close(work: Coroutine[Any, Any, int | None]) -> int | None:
        try:
            return await work
        finally:
            await session.close()

    with asyncio.Runner(loop_factory=_uvloop_factory() if session.is_service else None) as runner:
        return runner.run(run_and_close(answer))


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on this platform
        return None
    return uvloop.new_event_loop


def _reject_invalid_text(context: click.Context) -> None:
    """Reject empty values of options that name something, and values that cannot be stored as text.

    An unset shell variable arrives as empty text; it must not select the default.
    """
    for parameter in context.command.params:
        value, label = context.params.get(parameter.name or ""), parameter_label(parameter)
        if value == "" and isinstance(parameter, click.Option) and parameter.name in _NON_EMPTY_OPTIONS:
            remedy = "omit the option, or give a value"
            raise Invalid(f"{label} is empty", code="cli.option.empty", field=label, remedy=remedy)
        if any(kind in (parameter.metavar or "") for kind in ("FILE", "FOLDER")):
            continue  # a file name may contain any bytes
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and not text.isascii():
                check_text(text, field=label, limit=_MAX_TEXT_LENGTH)


def login_name() -> str:
    """Return the name of the operating system user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return f"uid {os.getuid()}"
