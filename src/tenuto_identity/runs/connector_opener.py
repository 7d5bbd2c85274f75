"""Opening the connector of a system: settings checked, secrets revealed, files limited to the allowed folders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tenuto.errors import UserError
from tenuto.extension import ExtensionServices
from tenuto.jobs.context import Context
from tenuto.model.access.secrets import SecretRef
from tenuto.steps import sql_script
from tenuto_identity.connectors.contract import Connector, ConnectorContext, ConnectorError, NamedConnection
from tenuto_identity.connectors.registry import find_connector, parse_settings
from tenuto_identity.model.decoding import Decoding
from tenuto_identity.model.definitions.system_definitions import OnBadValue
from tenuto_identity.runs.definition_snapshot import System
from tenuto_identity.runs.run_lifecycle import RunFailed
from tenuto_identity.settings import IdentitySettings

T = TypeVar("T")


@asynccontextmanager
async def open_connector(
    services: ExtensionServices, ctx: Context, system: System, *, read_only: bool = False
) -> AsyncIterator[Connector]:
    """Open the connector of a system for one run; its expected errors fail the run without a retry."""
    definition = system.definition
    context = ConnectorContext(
        types=tuple(definition.types.values()),
        containers=definition.containers,
        allowed_folders=allowed_folders(services),
        allowed_hosts=services.get_settings().http_allowed_hosts,
        secrets=await _reveal_secrets(services, ctx, definition.settings),
        connections=await _reveal_connection(services, ctx, definition.settings),
        read_only=read_only,
        wait=ctx.wait,
    )
    ctx.wait(0)  # creates the event here, because the threads of a connector may wait at the same time
    connector: Connector | None = None
    try:
        kind = find_connector(definition.connector)
        connector = await asyncio.to_thread(kind.open, parse_settings(kind, definition.settings), context)
        yield connector
    except ConnectorError as error:
        raise RunFailed(error.message, code=f"identity.connector.{error.code}", remedy=error.remedy) from error
    except UserError as error:
        raise RunFailed(error.message, code=error.code, remedy=error.remedy) from error
    finally:
        if connector is not None:
            await asyncio.to_thread(connector.close)


async def call_connector(function: Callable[..., T], *arguments: Any) -> T:
    """Call a connector in a thread; a cancellation takes effect after the call, whose waits end at once."""
    is_cancelled, result = await finish_call(function, *arguments)
    if is_cancelled:
        raise asyncio.CancelledError
    return result


async def finish_call(function: Callable[..., T], *arguments: Any) -> tuple[bool, T]:
    """Call a connector in a thread; return whether the run was cancelled meanwhile, and the result.

    The call is not abandoned: its thread would go on to write, or use a connector that is closed."""
    call = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return False, await asyncio.shield(call)
    except asyncio.CancelledError:
        while not call.done():
            with suppress(asyncio.CancelledError):  # the worker repeats a stop that takes long
                await asyncio.wait([call])
        if call.cancelled() or call.exception() is not None:
            raise
        return True, call.result()


def decoding_of(system: System) -> Decoding:
    """Return how the cells of a system are decoded."""
    from dataclasses import replace

    kind = find_connector(system.definition.connector)
    found = kind.decoding(parse_settings(kind, system.definition.settings))
    return replace(found, rejects_bad_values=system.definition.on_bad_value is OnBadValue.REJECT)


def allowed_folders(services: ExtensionServices) -> tuple[Path, ...]:
    """Return the folders that connectors may read and write files in."""
    folders = services.section(IdentitySettings).folders
    settings = services.get_settings()
    own = settings.files_directory or settings.home / "files"
    return (own.absolute(), *(folder.absolute() for folder in folders))


async def _reveal_secrets(services: ExtensionServices, ctx: Context, settings: Any) -> dict[str, str]:
    """Return the secrets that settings name, decrypted and redacted in everything that the attempt leaves behind."""
    found: dict[str, str] = {}
    for name in sorted(_secret_names(settings)):
        found[name] = await services.reveal_secret(ctx, SecretRef(secret=name))
    return found


async def _reveal_connection(services: ExtensionServices, ctx: Context, settings: Any) -> dict[str, NamedConnection]:
    """Return the connection that settings name, if the worker has it; its password is redacted like a secret."""
    name = settings.get("connection") if isinstance(settings, Mapping) else None
    found = services.get_settings().connections.get(name) if isinstance(name, str) else None
    if found is None or name is None:
        return {}
    url = await services.reveal_secret(ctx, sql_script.parse_url(found, name))
    sql_script.redact_password(ctx, url)
    return {name: NamedConnection(url, found.allow_privileged_login)}


def _secret_names(value: Any) -> set[str]:
    if isinstance(value, Mapping):
        if set(value) == {"secret"} and isinstance(value["secret"], str):
            return {value["secret"]}
        return {name for part in value.values() for name in _secret_names(part)}
    return {name for part in value for name in _secret_names(part)} if isinstance(value, list | tuple) else set()
