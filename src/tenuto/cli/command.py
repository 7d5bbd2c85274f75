"""What all commands have in common: shared options, examples in the help, an app that is opened and closed, an end in
words.

A command is a function that takes a `Session` and its own options. `command` adds the shared options, runs it (and the
event loop, if it is a coroutine) and turns what it raises into a line on stderr and an exit code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from tenuto.cli import exit_codes
from tenuto.errors import Invalid

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from tenuto.app import Tenuto

F = TypeVar("F", bound=Callable[..., Any])

SHARED: dict[str, tuple[Any, Any]] = {
    "app": (
        Annotated[
            str | None,
            typer.Option(
                "--app",
                envvar="TENUTO_APP",
                show_envvar=False,
                metavar="MODULE:OBJECT",
                help="Your Tenuto app, looked for in the working folder too. [TENUTO_APP]",
            ),
        ],
        None,
    ),
    "database": (
        Annotated[
            str | None,
            typer.Option(
                metavar="URL",
                help="The PostgreSQL to use; without one, an embedded server in the home. [TENUTO_DATABASE]",
            ),
        ],
        None,
    ),
    "home": (
        Annotated[
            str | None,
            typer.Option(metavar="FOLDER", help="Where the embedded database and health files live. [TENUTO_HOME]"),
        ],
        None,
    ),
    "output": (
        Annotated[
            Literal["table", "json"],
            typer.Option(
                "--output",
                "-o",
                metavar="table|json",
                show_default=False,
                help="How to show the answer. (default: table)",
            ),
        ],
        "table",
    ),
    "quiet": (Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the answer, and errors.")], False),
}
EVERYTHING = tuple(SHARED)
SERVICE = ("app", "database", "home", "quiet")
_NEVER_EMPTY = ("app", "database", "home", "queues", "queue", "name", "host")
_LONGEST_LINE = 16 * 1024 * 1024
"""Longer than any command line: what a text may measure is said by whoever takes it."""
_PATIENCE_AT_THE_PROMPT = 1.0
"""Somebody waits for the answer: a database that is not there is told of soon. Services wait for theirs."""


class Session:
    """What the shared options said, and the app they lead to."""

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
        """What the command is called on the record: ``schedule.disable``."""
        self.app_name = app
        self._database = database
        self._home = home

    @property
    def home(self) -> Path:
        """Where this machine's files are, for what needs neither app nor database."""
        from tenuto import paths

        return paths.home(self._home)

    @cached_property
    def app(self) -> Tenuto:
        """The app that was named, or one without jobs."""
        from tenuto import logs
        from tenuto.cli.app_loader import load

        app = load(self.app_name, self._database, self._home)
        if not self.is_service and "connect_seconds" not in app.settings.model_fields_set:
            app.settings = app.settings.model_copy(update={"connect_seconds": _PATIENCE_AT_THE_PROMPT})
        if app.settings.database is None and not (app.settings.home / "postgres").exists():
            self.say(f"making an embedded PostgreSQL in {app.settings.home}; TENUTO_DATABASE would name another server")
        level = app.settings.log_level if self.is_service else "warning"
        logs.configure(app.settings.log_format, "warning" if self.quiet and level in ("debug", "info") else level)
        return app

    @property
    def app_with_jobs(self) -> Tenuto:
        """The app that was named; a refusal if none was, or if it has no jobs."""
        if self.app_name is None:
            raise Invalid(
                "is needed here: it says which jobs there are",
                field="--app",
                remedy="add --app MODULE:OBJECT, such as --app tasks:app for `app = Tenuto()` in tasks.py",
            )
        if not self.app.jobs.by_name:
            raise Invalid(
                f"{self.app_name} has no jobs",
                field="--app",
                remedy="register functions with @app.job, and import their modules where the app is defined",
            )
        return self.app

    @contextmanager
    def as_user(self) -> Iterator[Tenuto]:
        """The app, with whatever is asked for inside on the account, and the record, of the person at the terminal."""
        from tenuto.model.actors import Actor
        from tenuto.store.access.audit_recorder import Deed, on_record

        who = Actor.user(login_name())
        with self.app.acting_as(who), on_record(Deed(who, self.action, "cli")):
            yield self.app

    def say(self, text: str) -> None:
        """Talk, on stderr."""
        if not self.quiet:
            from tenuto.cli.output import talk

            talk(text)

    async def close(self) -> None:
        """Let go of what was opened."""
        if "app" in self.__dict__:
            await self.app.close()


def group(root: typer.Typer, name: str, description: str, *examples: str) -> typer.Typer:
    """A word with commands under it; alone, it shows its help."""
    branch = typer.Typer(rich_markup_mode=None)

    def alone(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    words = {"help": _help(examples, description), "short_help": description.removesuffix(".")}
    branch.callback(invoke_without_command=True, **words)(alone)  # type: ignore[arg-type]
    root.add_typer(branch, name=name)
    return branch


def command(
    group: typer.Typer, name: str | None, *examples: str, shared: tuple[str, ...] = EVERYTHING, service: bool = False
) -> Callable[[F], F]:
    """Register a command; without a name it is what the group itself does."""

    def register(function: F) -> F:
        run = _framed(function, shared, service=service)
        description = inspect.getdoc(function) or ""
        words: dict[str, Any] = {
            "help": _help(examples, description),
            "short_help": description.partition("\n")[0].removesuffix("."),
        }
        if name is None:
            group.callback(invoke_without_command=True, **words)(run)
        else:
            group.command(name, **words)(run)
        return function

    return register


def _help(examples: tuple[str, ...], description: str) -> str:
    lines = "\n".join(f"  {example}" for example in examples)
    return f"Examples:\n\n\b\n{lines}\n\n{description}"


def _framed(function: Callable[..., Any], shared: tuple[str, ...], *, service: bool) -> Callable[..., None]:
    signature = inspect.signature(function, eval_str=True)
    own = [
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
        if parameter.name != "session"
    ]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=SHARED[name][1], annotation=SHARED[name][0])
        for name in shared
    ]

    def run(*, context: typer.Context, **given: Any) -> None:
        if context.invoked_subcommand is not None:
            return  # the group only stands before one of its commands
        said = dict(given)
        session = Session(**{name: given.pop(name) for name in shared})
        session.is_service = service
        session.action = ".".join(context.command_path.split()[1:]).replace("-", "_")

        def work() -> int | None:
            _refuse_what_no_text_is(context, said)
            return _completed(session, function(session, **given))

        code = exit_codes.in_words(work, context.command_path)
        if code != exit_codes.OK:
            raise typer.Exit(code)

    context_first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context_first, *own, *common]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = None
    return run


def _completed(session: Session, answer: Any) -> int | None:
    """The exit code a command answered with; if the answer is still to come, wait for it."""
    import asyncio

    if not inspect.iscoroutine(answer):
        code: int | None = answer
        return code

    async def whole(work: Coroutine[Any, Any, int | None]) -> int | None:
        try:
            return await work
        finally:
            await session.close()

    with asyncio.Runner(loop_factory=_fast_loop() if session.is_service else None) as runner:
        return runner.run(whole(answer))


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on this platform
        return None
    return uvloop.new_event_loop


def _refuse_what_no_text_is(context: typer.Context, given: dict[str, Any]) -> None:
    """Text that nobody means: none at all where something has to be named, and bytes that are no text.

    A variable that a shell does not know is empty text on the command line; it must not stand for the default.
    """
    for parameter in context.command.params:
        value = given.get(parameter.name or "")
        texts = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
        placed = parameter.metavar or ""
        named = parameter.opts[0] if parameter.param_type_name == "option" else placed.strip("[]…") or parameter.name
        if value == "" and parameter.name in _NEVER_EMPTY and parameter.param_type_name == "option":
            raise Invalid("is empty", field=named, remedy="leave it out, or say which")
        if any(mark in placed for mark in ("FILE", "FOLDER")):
            continue  # a file may be called by any bytes
        for text in texts:
            if isinstance(text, str) and not text.isascii():
                from tenuto.model.stored_values import storable_text

                storable_text(text, field=named or "", limit=_LONGEST_LINE)


def login_name() -> str:
    """Who is at the terminal."""
    import getpass
    import os

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return f"uid {os.getuid()}"
