"""The step kind ``sql``: run a script on a configured database or on a SQLite file.

The script runs with the login of its connection and has no access to Tenuto. Its result lists rows and duration of each
statement; notices of the database go into the log. Drivers run scripts: those for PostgreSQL and SQLite are built in,
others are registered with ``app.register_driver``.

Files that a step names (scripts and SQLite databases) must be inside one folder, after all links are resolved: the
setting ``files_directory``, by default ``files`` in the home folder. Files of Tenuto itself are rejected, even if they
are inside that folder or have a hard link in it.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pydantic
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from tenuto import paths
from tenuto.clock import monotonic_seconds
from tenuto.errors import Forbidden, Invalid, NotFound, quoted
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.jobs.redaction import MIN_LENGTH
from tenuto.jobs.registry import Job, TaskOptions
from tenuto.model.access.secrets import SecretRef, TextOrSecret
from tenuto.model.definitions.policies import MAX_TIMEOUT_SECONDS, RetryPolicy, TaskPolicy
from tenuto.model.definitions.sql_scripts import ParameterValue, Script, ScriptDriver, StatementResult
from tenuto.model.definitions.steps import SQL
from tenuto.model.work.logical_time import format_logical_time
from tenuto.model.work.tasks import parse_duration_seconds
from tenuto.postgres import script_runner
from tenuto.settings import ConnectionSettings, Settings
from tenuto.steps import sqlite
from tenuto.steps.built_in_kinds import StepServices

KIND = SQL
POSTGRESQL_SCHEMES = ("postgresql", "postgres")
DEFAULT_FOLDER_NAME = "files"
_MAX_FILE_BYTES = 16 * 1024 * 1024
_MAX_LISTED_STATEMENTS = 1000
_LOG_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
_url_type = TypeAdapter[TextOrSecret](TextOrSecret)

BUILT_IN_DRIVERS: dict[str, ScriptDriver] = {
    **dict.fromkeys(POSTGRESQL_SCHEMES, script_runner.run_script),
    sqlite.SCHEME: sqlite.run_script,
}

ParameterName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


class RunTime(BaseModel):
    """A parameter with an instant of the run: ``{"run": "scheduled_for"}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: Literal["scheduled_for", "interval_start", "interval_end"]

    def read(self, ctx: Context) -> str | None:
        """Return the instant as text; None for the interval of a run without one."""
        if self.run == "scheduled_for":
            return format_logical_time(ctx.scheduled_for)
        if ctx.interval is None:
            return None
        return format_logical_time(ctx.interval[self.run == "interval_end"])


Parameter = SecretRef | RunTime | bool | int | float | str | None


class _SqlJob(Job[..., Any]):
    """Also validates arguments that depend on each other."""

    def validate_input(self, text: str) -> str:
        checked = super().validate_input(text)
        arguments = self.load_input(checked)
        _check_script_or_file(arguments["script"], arguments["script_file"])
        _parse_timeout(arguments["timeout"])
        if arguments["connection"].startswith(f"{sqlite.SCHEME}:"):
            sqlite.parse_path(arguments["connection"])
        elif "://" in arguments["connection"]:
            raise Invalid(
                "connection is a URL, not the name of a connection",
                code="step.sql.connection.is_url",
                field="connection",
                remedy="name the connection in the settings, under [connections.NAME]",
            )
        return checked


def create_job(services: StepServices) -> Job[..., Any]:
    """Create the handler of this kind. By default a script is not retried."""

    async def sql(
        ctx: Context,
        connection: Annotated[str, Field(min_length=1, max_length=1000)],
        script: str | None = None,
        script_file: Annotated[str, Field(max_length=1000)] | None = None,
        parameters: dict[ParameterName, Parameter] | None = None,
        timeout: float | str = "1h",
        transaction: bool = True,
    ) -> dict[str, Any]:
        """Run a SQL script."""
        try:
            _check_script_or_file(script, script_file)
            text = script
            if text is None:
                text = await asyncio.to_thread(_read_file, services.get_settings(), script_file or "")
            url, driver, login = await _find_connection(ctx, connection, services)
            values, secret_names = await _reveal_parameters(ctx, parameters or {}, services)
            prepared = Script(
                url, text, values, secret_names, _parse_timeout(timeout), transaction, _notice_logger(ctx), login
            )
        except (Forbidden, Invalid, NotFound) as error:
            raise PermanentFailure(error.message, code=error.code, field=error.field, remedy=error.remedy) from error
        return await _run_script(ctx, prepared, driver)

    return _SqlJob(sql, KIND, TaskPolicy(RetryPolicy(max_attempts=1)), TaskOptions(), isolated=False)


async def _run_script(ctx: Context, script: Script, driver: ScriptDriver) -> dict[str, Any]:
    listed: list[dict[str, Any]] = []
    statement_count, row_count = 0, 0
    started_at = monotonic_seconds()
    try:
        # A driver is an async generator: closing it stops its work.
        async with aclosing(cast(Any, driver(script))) as results:
            result: StatementResult
            async for result in results:
                ended_at = monotonic_seconds()
                statement_count, row_count = statement_count + 1, row_count + (result.row_count or 0)
                if statement_count <= _MAX_LISTED_STATEMENTS:
                    seconds = round(ended_at - started_at, 6)
                    listed.append({"command": result.command, "rows": result.row_count, "seconds": seconds})
                started_at = ended_at
                ctx.progress(statement_count, message=f"{statement_count} statements, {row_count} rows")
    except (Forbidden, Invalid) as error:  # script or login are wrong: a retry cannot help
        raise PermanentFailure(error.message, code=error.code, field=error.field, remedy=error.remedy) from None
    return {"count": statement_count, "rows": row_count, "statements": listed}


def _notice_logger(ctx: Context) -> Callable[[str, str], None]:
    def log_notice(level: str, text: str) -> None:
        ctx.log.add_line(logging.getLevelName(_LOG_LEVELS.get(level, logging.INFO)), text)

    return log_notice


# --- script and parameters --------------------------------------------------------------------------------------------


def _check_script_or_file(script: str | None, script_file: str | None) -> None:
    if (script is None) == (script_file is None):
        raise Invalid(
            "exactly one of script and script_file is required", code="step.sql.script.not_exactly_one", field="script"
        )
    if script is not None and not script.strip():
        raise Invalid("script contains no statement", code="step.sql.script.empty", field="script")


def _read_file(settings: Settings, script_file: str) -> str:
    file = resolve_file(settings, Path(script_file), "script_file")
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Invalid(
                f"script file {quoted(script_file, 200)} is not a file",
                code="step.sql.script_file.not_a_file",
                field="script_file",
            )
        if status.st_size > _MAX_FILE_BYTES:
            raise Invalid(
                f"script file {quoted(script_file, 200)} is larger than {_MAX_FILE_BYTES} bytes",
                code="step.sql.script_file.too_large",
                field="script_file",
            )
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid(
            f"script file {quoted(script_file, 200)} is not UTF-8 text",
            code="step.sql.script_file.not_utf8",
            field="script_file",
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name is not valid"
        raise NotFound(
            f"script file {quoted(script_file, 200)} cannot be read: {reason}",
            code="step.sql.script_file.unreadable",
            field="script_file",
        ) from None


def _parse_timeout(timeout: float | str) -> float:
    seconds = parse_duration_seconds(timeout, field="timeout")
    if seconds is None or not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise Invalid(
            f"timeout {quoted(timeout, 40)} is not between 0 s and {MAX_TIMEOUT_SECONDS:g} s",
            code="step.sql.timeout.out_of_range",
            field="timeout",
            remedy="give seconds, or a duration such as 10m",
        )
    return seconds


async def _reveal_parameters(
    ctx: Context, parameters: Mapping[str, Parameter], services: StepServices
) -> tuple[dict[str, ParameterValue], frozenset[str]]:
    """Return the parameters with secrets revealed, and the names of the secret ones."""
    revealed: dict[str, ParameterValue] = {}
    for name, value in parameters.items():
        if isinstance(value, SecretRef):
            revealed[name] = await services.reveal_secret(ctx, value)
        else:
            revealed[name] = value.read(ctx) if isinstance(value, RunTime) else value
    return revealed, frozenset(name for name, value in parameters.items() if isinstance(value, SecretRef))


# --- connection -------------------------------------------------------------------------------------------------------


async def _find_connection(
    ctx: Context, connection: str, services: StepServices
) -> tuple[str, ScriptDriver, str | None]:
    """Return the URL of a connection, its driver, and the login that it must not use."""
    settings = services.get_settings()
    if connection.startswith(f"{sqlite.SCHEME}:"):
        file = await asyncio.to_thread(resolve_file, settings, sqlite.parse_path(connection), "connection")
        return f"{sqlite.SCHEME}:///{quote(str(file))}", sqlite.run_script, None
    found = settings.connections.get(connection)
    if found is None:
        known = ", ".join(sorted(settings.connections)) or "none"
        raise NotFound(
            f"there is no connection named {quoted(connection)} in the settings of this worker",
            code="step.sql.connection.not_found",
            field="connection",
            remedy=f"known connections: {known}; add others under [connections.NAME]",
        )
    url = await services.reveal_secret(ctx, parse_url(found, connection))
    redact_password(ctx, url)
    login = None if found.allow_privileged_login else await script_runner.load_own_login(await services.open_database())
    return url, _find_driver(found, url, connection, services), login


def parse_url(found: ConnectionSettings, connection: str) -> TextOrSecret:
    """Return the URL of a connection, or the secret that has it."""
    try:
        return _url_type.validate_python(found.url)
    except pydantic.ValidationError:
        raise Invalid(
            f"the url of connection {connection!r} is neither a URL nor a reference to a secret",
            code="step.sql.connection.url_invalid",
            field=f"connections.{connection}.url",
            remedy='write url = "postgresql://…" or url = { secret = "NAME" }',
        ) from None


def redact_password(ctx: Context, url: str) -> None:
    """Redact the password itself: messages of drivers and servers may contain it without the rest of the URL."""
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        passwords = [parts.password or "", *options.get("password", []), *options.get("sslpassword", [])]
    except ValueError:
        return
    for password in passwords:
        for form in {password, unquote(password)}:
            if len(form.strip()) >= MIN_LENGTH:
                ctx.redact(form)


def _find_driver(found: ConnectionSettings, url: str, connection: str, services: StepServices) -> ScriptDriver:
    name = found.driver or url.partition(":")[0]
    driver = services.drivers.get(name) or BUILT_IN_DRIVERS.get(name)
    if driver is None:
        known = ", ".join(sorted({*BUILT_IN_DRIVERS, *services.drivers}))
        # A name taken from the URL is not shown, because the URL may be a secret.
        shown = f"driver {found.driver!r}" if found.driver else "driver for the scheme of its URL"
        raise NotFound(
            f"connection {connection!r}: there is no {shown}",
            code="step.sql.driver.not_found",
            field=f"connections.{connection}.driver",
            remedy=f"known drivers: {known}; add others with app.register_driver",
        )
    return driver


# --- files ------------------------------------------------------------------------------------------------------------


def _files_directory(settings: Settings) -> Path:
    """Return the folder for files of steps. The default folder is created."""
    if settings.files_directory is not None:
        return settings.files_directory.resolve()
    folder = settings.home / DEFAULT_FOLDER_NAME
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # guard: step_files.private_folder
    return folder.resolve()


def resolve_file(settings: Settings, path: Path, field: str) -> Path:
    """Return the file behind all links, if a step may use it."""
    folder = _files_directory(settings)
    try:
        file = (folder / path).resolve()  # guard: step_files.resolved_path
    except (OSError, ValueError, RuntimeError):
        raise Invalid(
            f"{quoted(str(path), 200)} is not a valid path", code="step.file.path_invalid", field=field
        ) from None
    if not file.is_relative_to(folder):  # guard: step_files.inside_folder
        raise Invalid(
            f"{quoted(str(path), 200)} is outside of the folder {folder}",
            code="step.file.outside_folder",
            field=field,
            remedy="name a file in that folder, or set TENUTO_FILES_DIRECTORY",
        )
    if _is_own_file(settings, file):  # guard: step_files.own_files
        raise Forbidden(
            f"{quoted(str(path), 200)} is a file of Tenuto itself",
            code="step.file.forbidden",
            field=field,
            remedy=f"keep the files of steps in a separate folder, such as {settings.home / DEFAULT_FOLDER_NAME}",
        )
    return file


def _is_own_file(settings: Settings, file: Path) -> bool:
    home = settings.home.resolve()
    # guard: step_files.home_folder
    if file.is_relative_to(home) and not file.is_relative_to(home / DEFAULT_FOLDER_NAME):
        return True
    return any(_is_same_file(file, each) for each in _key_files(settings))


def _key_files(settings: Settings) -> Iterator[Path]:
    """Yield the files with keys and passwords, which may be anywhere or have hard links."""
    # guard: step_files.key_files
    yield from (each for each in (settings.master_key_file, settings.web_tls_key) if each is not None)
    yield paths.settings_file_path()  # guard: step_files.settings_file
    if settings.home.is_dir():
        yield from (each for each in settings.home.iterdir() if each.is_file())


def _is_same_file(file: Path, other: Path) -> bool:
    if file == other.resolve():
        return True
    try:
        return file.samefile(other)  # guard: step_files.hard_links
    except OSError:  # one of them does not exist
        return False
