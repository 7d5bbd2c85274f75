"""Secret operations (``app.secrets``): set, list, delete and rotate secrets, and reveal them to running attempts.

Only a running attempt can read a value, which is then redacted in all output of that attempt. The encryption is in
`secret_encryption`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tenuto import secret_encryption
from tenuto.errors import Conflict, Forbidden, Invalid, NotFound, quoted
from tenuto.jobs.context import Context, current_context
from tenuto.jobs.redaction import MIN_LENGTH
from tenuto.model import validation
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.access.secrets import SecretRef, TextOrSecret
from tenuto.operations.argument_checks import check_limit
from tenuto.operations.bound_operation import OpenDatabase, OperationGroup
from tenuto.postgres.database import Connection
from tenuto.secret_encryption import MasterKeys, UnknownMasterKey
from tenuto.settings import Settings
from tenuto.store.access import secrets
from tenuto.store.access.secrets import SecretRecord

MAX_VALUE_BYTES = 64 * 1024


class Secrets(OperationGroup):
    """Operations on secrets."""

    def __init__(self, open: OpenDatabase, caller: OperationCaller, settings: Callable[[], Settings]) -> None:
        super().__init__(open, caller)
        self._settings = settings

    async def set(self, name: str, value: str) -> int:
        """Store a value under a name and return its version."""
        validation.check_name(name, field="name")
        _check_value(value)
        operation = await self._begin("secret.set", target=name)

        async def put(connection: Connection) -> int:
            keys = await self._encryption_keys(await secrets.lock_secrets(connection))
            version = await secrets.load_version(connection, name) + 1
            await secrets.store_secret(
                connection, keys.encrypt(name, version, value), operation.now, operation.actor.name
            )
            operation.entry.after = {"name": name, "version": version, "key_id": keys.current.id}
            return version

        return await operation.database.transaction(put)

    async def list(self, *, after: str = "", limit: int = 100) -> Sequence[SecretRecord]:
        """List secrets by name without their values: version, master key, time and author."""
        return await secrets.list_secrets(await self._open(), after, check_limit(limit))

    async def delete(self, name: str) -> None:
        """Delete a secret. Steps that refer to it fail from now on."""
        operation = await self._begin("secret.delete", target=name)
        if not await secrets.delete_secret(operation.database, name):
            raise _not_found(name)

    async def rotate(self, *, forget_old_keys: bool = False) -> int:
        """Wrap every secret with the current master key and return the number of secrets changed.

        With the key file in the home directory, a new key is created first. Older keys stay in the file, because dumps
        made before need them; with ``forget_old_keys``, those that no secret needs are removed at the end. With keys in
        settings: put the new key before the old one, restart every service, call this, and remove the old one when no
        dump needs it.
        """
        operation = await self._begin("secret.rotate")

        async def rewrap(connection: Connection) -> int:
            counts_by_key = await secrets.lock_secrets(connection)
            if not counts_by_key:
                return 0
            keys = await asyncio.to_thread(secret_encryption.require_keys, self._settings())
            _check_keys_known(counts_by_key, keys)
            if keys.managed_file is not None:
                keys = await asyncio.to_thread(secret_encryption.add_key, keys)
            count, last = 0, ""
            while page := await secrets.list_secrets_under_other_keys(connection, keys.current.id, last):
                for each in page:
                    await secrets.update_wrapping(connection, keys.rewrap(each))
                count, last = count + len(page), page[-1].name
            operation.entry.after = {"key_id": keys.current.id, "secrets": count}
            return count

        async def tidy(connection: Connection) -> None:
            # After the commit of rewrap, and under the same lock: a key in use must never be removed.
            counts_by_key = await secrets.lock_secrets(connection)
            keys = await asyncio.to_thread(secret_encryption.find_keys, self._settings())
            if keys is not None and keys.managed_file is not None:
                await asyncio.to_thread(secret_encryption.drop_unused_keys, keys, counts_by_key)

        count = await operation.database.transaction(rewrap)
        if forget_old_keys:
            await operation.database.transaction(tidy)
        return count

    async def count_old_keys(self) -> int | None:
        """Return the number of master keys besides the current one; None if no master key is configured."""
        keys = await asyncio.to_thread(secret_encryption.find_keys, self._settings())
        return None if keys is None else len(list(keys)) - 1

    async def reveal(self, secret: TextOrSecret, ctx: Context | None = None) -> str:
        """Return the value of a secret to the running attempt, and redact it in the attempt's output from now on.

        ``secret`` is a name or a reference as in steps. A thread started by the job must pass ``ctx``.
        """
        context = ctx or current_context.get()
        if context is None:
            raise Forbidden(
                "a secret can be revealed only to a running attempt",
                code="secret.reveal.no_attempt",
                remedy="call this inside a job, or pass its ctx",
            )
        ref = SecretRef(secret=secret) if isinstance(secret, str) else secret
        value = await self._decrypt_value(ref.secret)
        context.redact(value)
        return ref.prefix + value

    async def resolve_text(self, ctx: Context, text: TextOrSecret) -> str:
        """Return a text of a step, or the value of the secret that it refers to."""
        return text if isinstance(text, str) else await self.reveal(text, ctx)

    async def _decrypt_value(self, name: str) -> str:
        database = await self._open()
        for is_last_try in (False, True):
            # Read the row before the keys: during a rotation a key stays in the file longer than in use.
            row = await secrets.load_secret(database, name)
            if row is None:
                raise _not_found(name)
            keys = await asyncio.to_thread(secret_encryption.require_keys, self._settings())
            try:
                return keys.decrypt(row)
            except UnknownMasterKey:
                if is_last_try:
                    raise
        raise AssertionError("unreachable")

    async def _encryption_keys(self, counts_by_key: dict[str, int]) -> MasterKeys:
        """Return the master keys. A missing key is created only if no secret is stored yet."""
        find = secret_encryption.require_keys if counts_by_key else secret_encryption.find_or_create_keys
        keys = await asyncio.to_thread(find, self._settings())
        _check_keys_known(counts_by_key, keys)
        return keys


def _check_keys_known(counts_by_key: dict[str, int], keys: MasterKeys) -> None:
    unknown = {key_id: count for key_id, count in counts_by_key.items() if key_id not in keys}
    if unknown:
        key_id, count = next(iter(unknown.items()))
        raise Conflict(
            f"{count} secrets are encrypted with the master key {key_id}, which is not in {keys.origin}",
            code="secret.master_key.unknown",
            field="master_key",
            remedy="configure that key, alone or after a new one",
        )


def _check_value(value: str) -> None:
    validation.check_text(value, field="value", limit=MAX_VALUE_BYTES)
    if len(value.strip()) < MIN_LENGTH:
        raise Invalid(
            f"a secret must have at least {MIN_LENGTH} characters, because shorter values cannot be redacted",
            code="secret.value.too_short",
            field="value",
            remedy="use a longer value",
        )


def _not_found(name: str) -> NotFound:
    return NotFound(
        f"there is no secret named {quoted(name)}",
        code="secret.not_found",
        remedy=f"set it with `tenuto secret set {name:.80}`",
    )
