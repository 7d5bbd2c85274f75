"""Frame of every command: registration, shared options, help with examples, one app per call, errors and exit codes.

A command is a function that takes a `Session` and its own options. `command` adds the shared options, runs the function
(in an event loop if it is a coroutine) and reports an error on stderr with an exit code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from tenuto.cli import exit_codes, output
from tenuto.errors import Invalid
from tenuto.model.validation import check_text

if TYPE_CHECKING:
    import asyncio
    from datetime import datetime
    from pathlib import Path

    from tenuto.app import Tenuto

F = TypeVar("F", bound=Callable[..., Any])


def option(metavar: str, help: str, *names: str, **settings: Any) -> Any:
    """Declare an option with a value; without names, its name is that of the parameter."""
    return typer.Option(*names, metavar=metavar, help=help, **settings)


def flag(help: str, *names: str) -> Any:
    """Declare an option without a value."""
    return typer.Option(*names, help=help)


def argument(metavar: str, help: str, **settings: Any) -> Any:
    """Declare a positional argument."""
    return typer.Argument(metavar=metavar, help=help, **settings)


def text_option(name: str, metavar: str, help: str, **settings: Any) -> tuple[Any, None]:
    """Return annotation and default of an option with an optional text, for a table of options."""
    return Annotated[str | None, option(metavar, help, name, **settings)], None


_OUTPUT_HELP = "Output format; json also applies to errors. (default: table)"
_OUTPUT_OPTION = option("table|json", _OUTPUT_HELP, "--output", "-o", show_default=False)
_APP_HELP = "Tenuto app to load; the working folder is on the import path. [TENUTO_APP]"
_DATABASE_HELP = "PostgreSQL URL; without it, an embedded server in the home folder. [TENUTO_DATABASE]"
_HOME_HELP = "Folder of the embedded database and the health files. [TENUTO_HOME]"
SHARED_OPTIONS: dict[str, tuple[Any, Any]] = {
    "app": text_option("--app", "MODULE:OBJECT", _APP_HELP, envvar="TENUTO_APP", show_envvar=False),
    "database": text_option("--database", "URL", _DATABASE_HELP),
    "home": text_option("--home", "FOLDER", _HOME_HELP),
    "output": (Annotated[Literal["table", "json"], _OUTPUT_OPTION], "table"),
    "quiet": (Annotated[bool, flag("No messages on stderr except errors.", "--quiet", "-q")], False),
}
ALL_SHARED = tuple(SHARED_OPTIONS)
SERVICE_SHARED = ("app", "database", "home", "quiet")
_NON_EMPTY_OPTIONS = ("app", "database", "home", "queues", "queue", "name", "host")
_MAX_TEXT_LENGTH = 16 * 1024 * 1024
"""Longer than any command line; the operation that receives the text enforces its own limit."""
_INTERACTIVE_CONNECT_SECONDS = 1.0
"""An operator waits for the answer, so an unreachable database is reported soon. Services wait longer."""

top_level = typer.Typer(rich_markup_mode=None)
"""Commands and groups directly under `tenuto`. A command module registers them here when it is imported."""


class Session:
    """Values of the shared options, and the app that they select."""

    def __init__(
        self,
        *,
        app: str | None = None,
        database: str | None = None,
        home: str | None = None,
        output: str = "table",
        quiet: bool = False,
    ) -> None:
        self.as_json = output == "json"
        self.quiet = quiet
        self.is_service = False
        self.action = "unknown"
        """Name of the command in the audit log: ``schedule.disable``."""
        self.app_name = app
        self._database = database
        self._home = home

    @property
    def home(self) -> Path:
        """Home folder of this machine, for commands without app and database."""
        from tenuto import paths

        return paths.find_home(self._home)

    @cached_property
    def app(self) -> Tenuto:
        """The app named with --app, or an app without jobs."""
        from tenuto import logs
        from tenuto.cli.app_loader import load_app

        app = load_app(self.app_name, self._database, self._home)
        if not self.is_service and "connect_seconds" not in app.settings.model_fields_set:
            app.settings = app.settings.model_copy(update={"connect_seconds": _INTERACTIVE_CONNECT_SECONDS})
        if app.settings.database is None and not (app.settings.home / "postgres").exists():
            self.print_message(
                f"creating an embedded PostgreSQL in {app.settings.home}; set TENUTO_DATABASE to use another server"
            )
        level = app.settings.log_level if self.is_service else "warning"
        logs.configure(app.settings.log_format, "warning" if self.quiet and level in ("debug", "info") else level)
        return app

    @property
    def app_with_jobs(self) -> Tenuto:
        """The app named with --app. Raise Invalid if there is none or if it has no jobs."""
        if self.app_name is None:
            raise Invalid(
                "--app is required: it names the app that defines the jobs",
                code="cli.app.missing",
                field="--app",
                remedy="add --app MODULE:OBJECT, such as --app tasks:app for `app = Tenuto()` in tasks.py",
            )
        if not self.app.jobs.jobs_by_name:
            remedy = "register functions with @app.job, and import their modules where the app is defined"
            raise Invalid(f"app {self.app_name} has no jobs", code="cli.app.no_jobs", field="--app", remedy=remedy)
        return self.app

    @contextmanager
    def as_user(self) -> Iterator[Tenuto]:
        """Yield the app with the terminal's user as actor of every operation and audit entry."""
        from tenuto.model.actors import Actor
        from tenuto.store.access.audit_recorder import AuditContext, audited

        user = Actor.user(login_name())
        with self.app.acting_as(user), audited(AuditContext(user, self.action, "cli")):
            yield self.app

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


def group(name: str, description: str, *examples: str) -> typer.Typer:
    """Register a group of commands; without a subcommand it prints its help.

    ``examples`` are the arguments after the name of the group.
    """
    branch = typer.Typer(name=name, rich_markup_mode=None)

    def print_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    texts = {"help": _help(f"tenuto {name}", examples, description), "short_help": description.removesuffix(".")}
    branch.callback(invoke_without_command=True, **texts)(print_help)  # type: ignore[arg-type]
    top_level.add_typer(branch, name=name)
    return branch


def command(
    group: typer.Typer, name: str | None, *examples: str, shared: tuple[str, ...] = ALL_SHARED, service: bool = False
) -> Callable[[F], F]:
    """Register the decorated function as a command; without a name it runs when the group is called alone.

    ``examples`` are the arguments after the name of the command.
    """
    path = " ".join(part for part in ("tenuto", "" if group is top_level else group.info.name, name) if part)

    def register(function: F) -> F:
        run = _wrap_command(function, shared, service=service)
        description = inspect.getdoc(function) or ""
        texts: dict[str, Any] = {
            "help": _help(path, examples, description),
            "short_help": description.partition("\n")[0].removesuffix("."),
        }
        if name is None:
            group.callback(invoke_without_command=True, **texts)(run)
        else:
            group.command(name, **texts)(run)
        return function

    return register


def _help(path: str, examples: Sequence[str], description: str) -> str:
    lines = "\n".join(f"  {path} {example}".rstrip() for example in examples)
    return f"Examples:\n\n\b\n{lines}\n\n{description}"


def _wrap_command(function: Callable[..., Any], shared: tuple[str, ...], *, service: bool) -> Callable[..., None]:
    signature = inspect.signature(function, eval_str=True)
    own = [
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
        if parameter.name != "session"
    ]
    common = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=SHARED_OPTIONS[name][1], annotation=SHARED_OPTIONS[name][0]
        )
        for name in shared
    ]

    def run(*, context: typer.Context, **options: Any) -> None:
        if context.invoked_subcommand is not None:
            return  # a subcommand of this group was called
        all_options = dict(options)
        session = Session(**{name: options.pop(name) for name in shared})
        session.is_service = service
        session.action = ".".join(context.command_path.split()[1:]).replace("-", "_")

        def work() -> int | None:
            _reject_invalid_text(context, all_options)
            return _run_to_completion(session, function(session, **options))

        code = exit_codes.run_reporting_errors(work, context.command_path, as_json=session.as_json)
        if code != exit_codes.OK:
            raise typer.Exit(code)

    context_first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context_first, *own, *common]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = None
    return run


def _run_to_completion(session: Session, answer: Any) -> int | None:
    """Return the exit code of a command; run it in an event loop if it is a coroutine."""
    import asyncio

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


def _reject_invalid_text(context: typer.Context, options: dict[str, Any]) -> None:
    """Reject empty values of options that name something, and values that cannot be stored as text.

    An unset shell variable arrives as empty text; it must not select the default.
    """
    for parameter in context.command.params:
        value = options.get(parameter.name or "")
        texts = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
        metavar = parameter.metavar or ""
        is_option = parameter.param_type_name == "option"
        label = parameter_label(parameter)
        if value == "" and is_option and parameter.name in _NON_EMPTY_OPTIONS:
            raise Invalid(
                f"{label} is empty", code="cli.option.empty", field=label, remedy="omit the option, or give a value"
            )
        if any(kind in metavar for kind in ("FILE", "FOLDER")):
            continue  # a file name may contain any bytes
        for text in texts:
            if isinstance(text, str) and not text.isascii():
                check_text(text, field=label, limit=_MAX_TEXT_LENGTH)


def parameter_label(parameter: Any) -> str:
    """Return the name of a parameter for errors: the option, or the placeholder of an argument."""
    if parameter.param_type_name == "option":
        return str(parameter.opts[0])
    return (parameter.metavar or "").strip("[]…") or parameter.name or ""


def login_name() -> str:
    """Return the name of the operating system user."""
    import getpass
    import os

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return f"uid {os.getuid()}"
