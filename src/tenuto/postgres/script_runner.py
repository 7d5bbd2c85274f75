"""Run SQL scripts on any PostgreSQL, on their own connection with their own login.

The rights of the login limit what a script can do, also after RESET ROLE. A login that is a superuser or Tenuto's own
is therefore rejected unless the settings allow it. Statements are sent one by one to report their row counts; rows are
not kept. However a script ends, none of its statements keeps running on the server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import asyncpg

from tenuto.errors import Forbidden, Invalid, Unavailable
from tenuto.model.definitions import sql_scripts
from tenuto.model.definitions.sql_scripts import Script, ScriptFailed, Statement, StatementResult
from tenuto.postgres.database import DRIVER_ERRORS, Database, translate_driver_error
from tenuto.postgres.servers.server_selection import connect
from tenuto.postgres.sql_loader import load_statements

SQL = load_statements(__file__)

_CONNECT_SECONDS = 15
_CLOSE_SECONDS = 5
_GRACE_SECONDS = 2
"""Additional wait after the server's timeout, which a script may have changed."""
_ROW_COUNT_PATTERN = re.compile(r"\d+$")
_LOG_LEVELS = {"DEBUG": "debug", "LOG": "info", "INFO": "info", "NOTICE": "info", "WARNING": "warning"}


async def run_script(script: Script) -> AsyncIterator[StatementResult]:
    """Run a script and yield the result of each statement."""
    parameters = {name: _parameter_sql(name, value, script) for name, value in script.parameters.items()}
    statements = await asyncio.to_thread(sql_scripts.split_statements, script.text, parameters)
    if script.in_transaction:
        _reject_transaction_commands(statements)
    connection = await _connect(script)
    try:
        await _prepare(connection, script)
        if script.in_transaction:
            await _execute_command(connection, "BEGIN", script)
        for number, statement in enumerate(statements, start=1):
            yield await _run_statement(connection, statement, number, script)
        await _finish_transaction(connection, script)
    finally:
        await _close_uninterrupted(connection, script)


def _parameter_sql(name: str, value: sql_scripts.ParameterValue, script: Script) -> str:
    if name in script.secret_parameters:
        return f" current_setting('tenuto.{name}') "
    return sql_scripts.sql_literal(value, field=f"parameters.{name}")


def _reject_transaction_commands(statements: list[Statement]) -> None:
    for statement in statements:
        if statement.controls_transaction:
            raise Invalid(
                f"line {statement.line} of the script: {statement.command} would end the transaction of the step",
                code="step.sql.script.transaction_command",
                field="script",
                remedy="remove it, or set transaction: false and begin and commit in the script",
            )


async def _connect(script: Script) -> asyncpg.Connection:
    try:
        return await connect(
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
        problem = translate_driver_error(error)
        # The driver's message about a URL may contain its password.
        reason = "the URL is not valid" if isinstance(error, ValueError) else problem.message
        kind = Unavailable if isinstance(problem, Unavailable) else ScriptFailed
        raise kind(
            f"cannot use the database of the script: {reason}",
            code="step.sql.connection.unusable",
            remedy="check the url of the connection in the settings",
        ) from None


async def load_own_login(database: Database) -> str:
    """Return Tenuto's login on its own database."""
    return str(await database.fetch_value(SQL.load_login))


async def _prepare(connection: asyncpg.Connection, script: Script) -> None:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await _configure_session(connection, script)
    except TimeoutError:
        raise Unavailable(
            f"the database of the script did not answer within {_CONNECT_SECONDS} s", code="step.sql.connection.timeout"
        ) from None
    except asyncpg.PostgresError as error:
        raise ScriptFailed(
            f"cannot prepare the session of the script: {_describe_error(error)}", code="step.sql.session.failed"
        ) from None

    def log_notice(_connection: Any, message: Any) -> None:
        level = _LOG_LEVELS.get(message.severity_en or message.severity, "info")
        script.on_notice(level, f"{message.severity.lower()}: {message.message}")

    connection.add_log_listener(log_notice)


async def _configure_session(connection: asyncpg.Connection, script: Script) -> None:
    if script.forbidden_login is not None:  # guard: sql_scripts.forbidden_login
        await _reject_privileged_login(connection, script.forbidden_login)
    with suppress(asyncpg.PostgresError):  # not supported on every platform
        await connection.execute(SQL.check_client_connection)
    for name in sorted(script.secret_parameters & script.parameters.keys()):
        await connection.fetchval(SQL.store_parameter, name, str(script.parameters[name]))


async def _reject_privileged_login(connection: asyncpg.Connection, own_login: str) -> None:
    reason = await connection.fetchval(SQL.find_privilege_on_tenuto)  # guard: sql_scripts.table_privileges
    if reason is None:
        reason = await connection.fetchval(SQL.find_privilege_on_server)  # guard: sql_scripts.superuser
    if reason is None and await connection.fetchval(SQL.load_login) == own_login:  # guard: sql_scripts.own_login
        reason = "is Tenuto's own"
    if reason is None:
        return
    raise Forbidden(
        f"the login of this connection {reason}",
        code="step.sql.login.too_powerful",
        field="connection",
        remedy="create a login role for scripts with only the necessary rights; to allow this one, "
        "set allow_privileged_login = true for the connection in the worker's settings",
    )


async def _execute_command(connection: asyncpg.Connection, command: str, script: Script) -> None:
    """Execute a statement of Tenuto with a client-side timeout, because a script may have changed the server's."""
    try:
        async with asyncio.timeout(script.timeout_seconds + _GRACE_SECONDS):
            await connection.execute(command)
    except TimeoutError:
        raise ScriptFailed(
            f"{command} took longer than {script.timeout_seconds:g} s and was interrupted",
            code="step.sql.timeout",
            remedy="give the step a longer timeout; the transaction may have been committed",
        ) from None
    except asyncpg.QueryCanceledError:
        raise ScriptFailed(
            f"{command} took longer than {script.timeout_seconds:g} s",
            code="step.sql.timeout",
            remedy="give the step a longer timeout",
        ) from None
    except asyncpg.PostgresError as error:  # deferred constraints fail at COMMIT
        raise ScriptFailed(f"{command} failed: {_describe_error(error)}", code="step.sql.commit.failed") from None
    except DRIVER_ERRORS as error:
        raise Unavailable(
            f"{command}: {translate_driver_error(error).message}", code="step.sql.connection.lost"
        ) from None


async def _run_statement(
    connection: asyncpg.Connection, statement: Statement, number: int, script: Script
) -> StatementResult:
    where = f"statement {number} (line {statement.line}, {statement.command})"
    try:
        async with asyncio.timeout(script.timeout_seconds + _GRACE_SECONDS):
            status = await connection.execute(statement.text)
    except asyncpg.QueryCanceledError:
        raise ScriptFailed(
            f"{where} took longer than {script.timeout_seconds:g} s",
            code="step.sql.timeout",
            remedy="give the step a longer timeout",
        ) from None
    except asyncpg.PostgresError as error:
        raise ScriptFailed(f"{where}: {_describe_error(error)}", code="step.sql.statement.failed") from None
    except TimeoutError:
        raise ScriptFailed(
            f"{where} took longer than {script.timeout_seconds:g} s and was interrupted",
            code="step.sql.timeout",
            remedy="give the step a longer timeout",
        ) from None
    except DRIVER_ERRORS as error:
        raise Unavailable(
            f"{where}: {translate_driver_error(error).message}", code="step.sql.connection.lost"
        ) from None
    if script.in_transaction and not connection.is_in_transaction():
        raise ScriptFailed(f"{where} ended the transaction of the step", code="step.sql.transaction.ended")
    counted = _ROW_COUNT_PATTERN.search(status)
    return StatementResult(statement.command or status, int(counted.group()) if counted else None)


def _describe_error(error: asyncpg.PostgresError) -> str:
    more = [f"{label}: {text}" for label in ("detail", "hint") if (text := getattr(error, label, None))]
    first, _, _ = str(error).partition("\n")  # may be empty: RAISE EXCEPTION ''
    return "; ".join([f"{error.sqlstate} {first}".strip(), *more])


async def _finish_transaction(connection: asyncpg.Connection, script: Script) -> None:
    if script.in_transaction:
        await _execute_command(connection, "COMMIT", script)
    elif connection.is_in_transaction():
        raise ScriptFailed(
            "the script left a transaction open, which was rolled back",
            code="step.sql.transaction.left_open",
            remedy="end the script with COMMIT, or remove BEGIN",
        )


async def _close_uninterrupted(connection: asyncpg.Connection, script: Script) -> None:
    """Close the connection and wait until the server has stopped its work, even if this task is cancelled meanwhile."""
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
        # The driver has sent the cancellation of an interrupted statement; closing waits for its arrival.
        await connection.close(timeout=_CLOSE_SECONDS)
    except (*DRIVER_ERRORS, asyncio.CancelledError):
        connection.terminate()
        with suppress(*DRIVER_ERRORS):
            other = await connect(script.url, timeout=_CLOSE_SECONDS, statement_cache_size=0)
            try:
                await other.fetchval(SQL.terminate_backend, backend)
            finally:
                other.terminate()
