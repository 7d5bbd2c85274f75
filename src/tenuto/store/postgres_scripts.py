"""SQL scripts on any PostgreSQL: a connection of their own, with the login they were given, never one of Tenuto's.

The login role is the limit of what a script may do: there is nothing above it that RESET ROLE could return to. So
one that is a superuser, or Tenuto's own, is refused unless the settings allow it.
Statements are sent one by one, so that each tells how many rows it concerned; rows themselves are not kept. However a
script ends, no statement of it goes on in the server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import asyncpg

from tenuto.errors import Forbidden, Invalid, Unavailable
from tenuto.model import sql_scripts
from tenuto.model.sql_scripts import Ran, Script, ScriptFailed, Statement
from tenuto.postgres.database import DRIVER_ERRORS, Database, translate
from tenuto.postgres.sql_loader import beside

SQL = beside(__file__)

_CONNECT_SECONDS = 15
_CLOSE_SECONDS = 5
_GRACE_SECONDS = 2
"""How much longer than the server we wait ourselves: a script may have lifted the server's limit."""
_ROWS = re.compile(r"\d+$")
_LEVELS = {"DEBUG": "debug", "LOG": "info", "INFO": "info", "NOTICE": "info", "WARNING": "warning"}


async def run(script: Script) -> AsyncIterator[Ran]:
    """Run a script; what became of each statement, as they end."""
    parameters = {name: _stands_for(name, value, script) for name, value in script.parameters.items()}
    statements = await asyncio.to_thread(sql_scripts.statements, script.text, parameters)
    if script.transaction:
        _refuse_transactions_of_its_own(statements)
    connection = await _connect(script)
    try:
        await _prepare(connection, script)
        if script.transaction:
            await _of_ours(connection, "BEGIN", script)
        for number, statement in enumerate(statements, start=1):
            yield await _one(connection, statement, number, script)
        await _conclude(connection, script)
    finally:
        await _close_for_real(connection, script)


def _stands_for(name: str, value: sql_scripts.Value, script: Script) -> str:
    if name in script.secret:
        return f" current_setting('tenuto.{name}') "
    return sql_scripts.literal(value, field=f"parameters.{name}")


def _refuse_transactions_of_its_own(statements: list[Statement]) -> None:
    for statement in statements:
        if statement.touches_the_transaction:
            raise Invalid(
                f"line {statement.line}: {statement.command} would end the transaction that makes it all or nothing",
                field="script",
                remedy="leave it out, or say transaction: false and have the script begin and commit by itself",
            )


async def _connect(script: Script) -> asyncpg.Connection:
    try:
        return await asyncpg.connect(
            script.url,
            timeout=_CONNECT_SECONDS,
            statement_cache_size=0,
            server_settings={
                "application_name": "tenuto script",
                "statement_timeout": str(max(1, round(script.timeout_seconds * 1000))),
                "standard_conforming_strings": "on",
            },
        )
    except (*DRIVER_ERRORS, ValueError) as error:
        problem = translate(error)
        # The words of the driver about an address may repeat it.
        why = "its address is not valid" if isinstance(error, ValueError) else problem.message
        kind = Unavailable if isinstance(problem, Unavailable) else ScriptFailed
        raise kind(
            f"the script's database cannot be used: {why}", remedy="check the url of its connection in the settings"
        ) from None


async def own_login(database: Database) -> str:
    """Who Tenuto itself is in its own database."""
    return str(await database.value(SQL.who_is_logged_in))


async def _prepare(connection: asyncpg.Connection, script: Script) -> None:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await _make_ready(connection, script)
    except TimeoutError:
        raise Unavailable(f"the script's database did not answer within {_CONNECT_SECONDS} s") from None
    except asyncpg.PostgresError as error:
        raise ScriptFailed(f"the script could not be made ready: {_words(error)}") from None

    def heard(_connection: Any, message: Any) -> None:
        level = _LEVELS.get(message.severity_en or message.severity, "info")
        script.notice(level, f"{message.severity.lower()}: {message.message}")

    connection.add_log_listener(heard)


async def _make_ready(connection: asyncpg.Connection, script: Script) -> None:
    if script.forbidden_login is not None:
        await _refuse_a_login_that_may_too_much(connection, script.forbidden_login)
    with suppress(asyncpg.PostgresError):  # not every platform can
        await connection.execute(SQL.notice_when_we_are_gone)
    for name in sorted(script.secret & script.parameters.keys()):
        await connection.fetchval(SQL.keep_parameter, name, str(script.parameters[name]))


async def _refuse_a_login_that_may_too_much(connection: asyncpg.Connection, ours: str) -> None:
    if await connection.fetchval(SQL.may_change_tenuto):
        why = "may change Tenuto's own tables"
    elif await connection.fetchval(SQL.is_superuser):
        why = "is a superuser's, or can become one"
    elif await connection.fetchval(SQL.who_is_logged_in) == ours:
        why = "is the one Tenuto itself uses"
    else:
        return
    raise Forbidden(
        f"the login of this connection {why}",
        field="connection",
        remedy="give scripts a login role of their own, with no more rights than they need; if it must be this one, "
        "say any_login = true for the connection in the worker's settings",
    )


async def _of_ours(connection: asyncpg.Connection, command: str, script: Script) -> None:
    """A statement that is not the script's. We wait for it ourselves: a script may have lifted the server's limit."""
    try:
        async with asyncio.timeout(script.timeout_seconds + _GRACE_SECONDS):
            await connection.execute(command)
    except TimeoutError:
        raise ScriptFailed(
            f"{command} took longer than {script.timeout_seconds:g} s and was broken off",
            remedy="give the step a longer timeout; what it was to commit may have been committed all the same",
        ) from None
    except asyncpg.QueryCanceledError:
        raise ScriptFailed(
            f"{command} took longer than {script.timeout_seconds:g} s", remedy="give the step a longer timeout"
        ) from None
    except asyncpg.PostgresError as error:  # at COMMIT deferred constraints speak up
        raise ScriptFailed(f"it could not be committed: {_words(error)}") from None
    except DRIVER_ERRORS as error:
        raise Unavailable(f"{command}: {translate(error).message}") from None


async def _one(connection: asyncpg.Connection, statement: Statement, number: int, script: Script) -> Ran:
    where = f"statement {number} (line {statement.line}, {statement.command})"
    try:
        async with asyncio.timeout(script.timeout_seconds + _GRACE_SECONDS):
            status = await connection.execute(statement.text)
    except asyncpg.QueryCanceledError:
        raise ScriptFailed(
            f"{where} took longer than {script.timeout_seconds:g} s", remedy="give the step a longer timeout"
        ) from None
    except asyncpg.PostgresError as error:
        raise ScriptFailed(f"{where}: {_words(error)}") from None
    except TimeoutError:
        raise ScriptFailed(
            f"{where} took longer than {script.timeout_seconds:g} s and was broken off",
            remedy="give the step a longer timeout",
        ) from None
    except DRIVER_ERRORS as error:
        raise Unavailable(f"{where}: {translate(error).message}") from None
    if script.transaction and not connection.is_in_transaction():
        raise ScriptFailed(f"{where} ended the transaction that should hold all of it")
    counted = _ROWS.search(status)
    return Ran(statement.command or status, int(counted.group()) if counted else None)


def _words(error: asyncpg.PostgresError) -> str:
    more = [f"{label}: {text}" for label in ("detail", "hint") if (text := getattr(error, label, None))]
    first, _, _ = str(error).partition("\n")  # which may be nothing: RAISE EXCEPTION ''
    return "; ".join([f"{error.sqlstate} {first}".strip(), *more])


async def _conclude(connection: asyncpg.Connection, script: Script) -> None:
    if script.transaction:
        await _of_ours(connection, "COMMIT", script)
    elif connection.is_in_transaction():
        raise ScriptFailed(
            "it left a transaction open, which was rolled back", remedy="end the script with COMMIT, or leave BEGIN out"
        )


async def _close_for_real(connection: asyncpg.Connection, script: Script) -> None:
    """Have the server drop what it does for us, and wait until it has; whoever cancels us meanwhile waits too."""
    closing = asyncio.ensure_future(_close(connection, script))
    cancelled: asyncio.CancelledError | None = None
    while not closing.done():
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _close(connection: asyncpg.Connection, script: Script) -> None:
    backend = connection.get_server_pid()
    try:
        # A statement that is broken off has been told to the server by the driver; closing waits for that to arrive.
        await connection.close(timeout=_CLOSE_SECONDS)
    except (*DRIVER_ERRORS, asyncio.CancelledError):
        connection.terminate()
        with suppress(*DRIVER_ERRORS):
            other = await asyncpg.connect(script.url, timeout=_CLOSE_SECONDS, statement_cache_size=0)
            try:
                await other.fetchval(SQL.end_backend, backend)
            finally:
                other.terminate()
