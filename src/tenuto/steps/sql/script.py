"""The step kind ``sql``: a script on a database that the settings name, or on a SQLite file.

The script runs with the login of its connection and nothing of Tenuto's. What becomes of it (rows per statement, how
long each took) is its result; what the database says on the way goes into the log. Drivers do the work: those for
PostgreSQL and SQLite come with Tenuto, others are registered with ``app.register_driver``.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pydantic
from pydantic import Field, TypeAdapter

from tenuto.clock import steady
from tenuto.errors import Forbidden, Invalid, NotFound
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.jobs.redaction import SHORTEST
from tenuto.jobs.registry import Job, Using
from tenuto.model.policies import MAX_TIMEOUT_SECONDS, Policy, RetryPolicy
from tenuto.model.secrets import SecretRef, Text
from tenuto.model.sql_scripts import Driver, Ran, Script, Value
from tenuto.model.steps import SQL
from tenuto.model.tasks import seconds
from tenuto.settings import ConnectionSettings, Settings
from tenuto.steps.sql import file_sandbox, sqlite
from tenuto.steps.step_kinds import Means
from tenuto.store import postgres_scripts

KIND = SQL
POSTGRESQL = ("postgresql", "postgres")
_LARGEST_FILE = 16 * 1024 * 1024
_LISTED = 1000
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
_address = TypeAdapter[Text](Text)

BUILT_IN: dict[str, Driver] = {
    **dict.fromkeys(POSTGRESQL, postgres_scripts.run),
    sqlite.SCHEME: sqlite.run,
}

ParameterName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
Parameter = SecretRef | bool | int | float | str | None


class _SqlJob(Job[..., Any]):
    """Checks also what no argument alone can tell."""

    def check_input(self, text: str) -> str:
        checked = super().check_input(text)
        given = self.load_input(checked)
        _one_of(given["script"], given["script_file"])
        _seconds(given["timeout"])
        if given["connection"].startswith(f"{sqlite.SCHEME}:"):
            sqlite.path_in(given["connection"])
        elif "://" in given["connection"]:
            raise Invalid(
                "is an address", field="connection", remedy="name it in the settings, under [connections.NAME]"
            )
        return checked


def job(means: Means) -> Job[..., Any]:
    """What runs the steps of this kind."""

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
            _one_of(script, script_file)
            text = await asyncio.to_thread(_read, means.settings(), script_file or "") if script is None else script
            url, driver, login = await _reach(ctx, connection, means)
            given, secret = await _revealed(ctx, parameters or {}, means)
            told = Script(url, text, given, secret, _seconds(timeout), transaction, _notices(ctx), login)
        except (Forbidden, Invalid, NotFound) as error:
            raise PermanentFailure(error.message, field=error.field, remedy=error.remedy) from error
        return await _run(ctx, told, driver)

    return _SqlJob(sql, KIND, Policy(RetryPolicy(max_retries=1)), Using(), isolated=False)


async def _run(ctx: Context, script: Script, driver: Driver) -> dict[str, Any]:
    listed: list[dict[str, Any]] = []
    count, rows = 0, 0
    began = steady()
    try:
        # A driver is an async generator: closing it stops what it does.
        async with aclosing(cast(Any, driver(script))) as running:
            ran: Ran
            async for ran in running:
                ended = steady()
                count, rows = count + 1, rows + (ran.rows or 0)
                if count <= _LISTED:
                    taken = round(ended - began, 6)
                    listed.append({"command": ran.command, "rows": ran.rows, "seconds": taken})
                began = ended
                ctx.progress(count, message=f"{count} statements, {rows} rows")
    except (Forbidden, Invalid) as error:  # the script itself or its login is wrong, and will be
        raise PermanentFailure(error.message, field=error.field, remedy=error.remedy) from None
    return {"count": count, "rows": rows, "statements": listed}


def _notices(ctx: Context) -> Callable[[str, str], None]:
    def heard(level: str, words: str) -> None:
        ctx.log.line(logging.getLevelName(_LEVELS.get(level, logging.INFO)), words)

    return heard


# --- what is run ----------------------------------------------------------------------------------------------------


def _one_of(script: str | None, script_file: str | None) -> None:
    if (script is None) == (script_file is None):
        raise Invalid("either this or script_file is needed", field="script", remedy="give one of the two")
    if script is not None and not script.strip():
        raise Invalid("holds no statement", field="script")


def _read(settings: Settings, script_file: str) -> str:
    file = file_sandbox.inside(settings, Path(script_file), "script_file")
    try:
        state = file.stat()
        if not stat.S_ISREG(state.st_mode):
            raise Invalid(f"{script_file!r:.200} is not a file", field="script_file")
        if state.st_size > _LARGEST_FILE:
            raise Invalid(f"{script_file!r:.200} is larger than {_LARGEST_FILE} bytes", field="script_file")
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid(f"{script_file!r:.200} is not UTF-8 text", field="script_file", remedy="save it so") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its name is not valid"
        raise NotFound(f"{script_file!r:.200} cannot be read: {why}", field="script_file") from None


def _seconds(timeout: float | str) -> float:
    limit = seconds(timeout, field="timeout")
    if limit is None or not 0 < limit <= MAX_TIMEOUT_SECONDS:
        raise Invalid("must be more than 0", field="timeout", remedy="give seconds, or a span such as 10m")
    return limit


async def _revealed(
    ctx: Context, parameters: Mapping[str, Parameter], means: Means
) -> tuple[dict[str, Value], frozenset[str]]:
    given: dict[str, Value] = {}
    for name, value in parameters.items():
        given[name] = await means.reveal(ctx, value) if isinstance(value, SecretRef) else value
    return given, frozenset(name for name, value in parameters.items() if isinstance(value, SecretRef))


# --- where it is run ------------------------------------------------------------------------------------------------


async def _reach(ctx: Context, connection: str, means: Means) -> tuple[str, Driver, str | None]:
    """The address a step means, the driver for it, and the login it must not have."""
    settings = means.settings()
    if connection.startswith(f"{sqlite.SCHEME}:"):
        file = await asyncio.to_thread(file_sandbox.inside, settings, sqlite.path_in(connection), "connection")
        return f"{sqlite.SCHEME}:///{quote(str(file))}", sqlite.run, None
    found = settings.connections.get(connection)
    if found is None:
        known = ", ".join(sorted(settings.connections)) or "none"
        raise NotFound(
            f"there is no connection named {connection!r:.80} in this worker's settings",
            field="connection",
            remedy=f"known here: {known}; add it under [connections.NAME]",
        )
    url = await means.reveal(ctx, _text(found, connection))
    _conceal_password(ctx, url)
    login = None if found.any_login else await postgres_scripts.own_login(await means.open())
    return url, _driver(found, url, connection, means), login


def _text(found: ConnectionSettings, connection: str) -> Text:
    try:
        return _address.validate_python(found.url)
    except pydantic.ValidationError:
        raise Invalid(
            "is neither an address nor a reference to a secret",
            field=f"connections.{connection}.url",
            remedy='write url = "postgresql://…" or url = { secret = "NAME" }',
        ) from None


def _conceal_password(ctx: Context, url: str) -> None:
    """Drivers and servers speak of the password alone, if at all, and not of the address."""
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        passwords = [parts.password or "", *options.get("password", []), *options.get("sslpassword", [])]
    except ValueError:
        return
    for password in passwords:
        for form in {password, unquote(password)}:
            if len(form.strip()) >= SHORTEST:
                ctx.conceal(form)


def _driver(found: ConnectionSettings, url: str, connection: str, means: Means) -> Driver:
    name = found.driver or url.partition(":")[0]
    driver = means.drivers.get(name) or BUILT_IN.get(name)
    if driver is None:
        known = ", ".join(sorted({*BUILT_IN, *means.drivers}))
        # Without a word of its own the name comes from the address, which may be a secret and no address at all.
        named = repr(name) if found.driver else "what its address begins with"
        raise NotFound(
            f"there is no driver for {named}",
            field=f"connections.{connection}.driver",
            remedy=f"known here: {known}; add others with app.register_driver",
        )
    return driver
