"""``app.secrets``: texts kept under a name, which steps and jobs may be shown and nobody else.

A value goes in and does not come out again, but to an attempt that is running; and then it is masked in whatever that
attempt leaves behind. How values are sealed is told in `sealing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tenuto import secret_encryption
from tenuto.errors import Conflict, Forbidden, Invalid, NotFound
from tenuto.jobs.context import Context, current
from tenuto.jobs.redaction import SHORTEST
from tenuto.model import stored_values
from tenuto.model.actors import Actor
from tenuto.model.secrets import SecretRef, Text
from tenuto.operations.listing import Open, Record, listed
from tenuto.postgres.database import Connection
from tenuto.secret_encryption import Keys, UnknownKey
from tenuto.settings import Settings
from tenuto.store.access import audit_recorder, secrets

LARGEST = 64 * 1024


class Secrets:
    """``app.secrets``: texts kept under a name, which steps and jobs may be shown and nobody else."""

    def __init__(self, open: Open, who: Callable[[], Actor], settings: Callable[[], Settings]) -> None:
        self._open = open
        self._who = who
        self._settings = settings

    async def set(self, name: str, value: str) -> int:
        """Keep a value under a name, in place of the one before; which version of it this is."""
        stored_values.name(name, field="name")
        _check(value)
        database = await self._open()
        now, by = database.clock.now(), self._who().name

        async def put(connection: Connection) -> int:
            keys = await self._keys_for(await secrets.hold(connection))
            version = await secrets.version(connection, name) + 1
            await secrets.put(connection, keys.seal(name, version, value), now, by)
            audit_recorder.tell(target=name, after={"name": name, "version": version, "key_id": keys.current.id})
            return version

        return await database.transaction(put)

    async def list(self, *, after: str = "", limit: int = 100) -> Sequence[Record]:
        """What is known of secrets but for their values, by name: version, key, when and by whom they were set."""
        return await secrets.list_secrets(await self._open(), after, listed(limit))

    async def delete(self, name: str) -> None:
        """Let a secret go. What refers to it fails from now on."""
        audit_recorder.tell(target=name)
        if not await secrets.delete(await self._open(), name):
            raise _no_secret(name)

    async def rotate(self) -> int:
        """Bring every secret under the current master key; how many had another one.

        With the key in the home, a new one is made first and the old one is dropped at the end. Where keys are given by
        settings, put the new one before the old one, restart every service, call this, and drop the old one.
        """
        database = await self._open()

        async def rewrap(connection: Connection) -> int:
            held = await secrets.hold(connection)
            if not held:
                return 0
            keys = await asyncio.to_thread(secret_encryption.find_or_refuse, self._settings())
            _refuse_strange(held, keys)
            if keys.ours is not None:
                keys = await asyncio.to_thread(secret_encryption.add_new, keys)
            count, last = 0, ""
            while some := await secrets.under_other_keys(connection, keys.current.id, last):
                for each in some:
                    await secrets.rewrapped(connection, keys.rewrap(each))
                count, last = count + len(some), some[-1].name
            audit_recorder.tell(after={"key_id": keys.current.id, "secrets": count})
            return count

        async def tidy(connection: Connection) -> None:
            # Not before the other is committed, and under the same lock: a key that is in use must never go.
            held = await secrets.hold(connection)
            keys = await asyncio.to_thread(secret_encryption.find, self._settings())
            if keys is not None and keys.ours is not None:
                await asyncio.to_thread(secret_encryption.drop_unused, keys, held)

        count = await database.transaction(rewrap)
        await database.transaction(tidy)
        return count

    async def reveal(self, secret: Text, ctx: Context | None = None) -> str:
        """The value of a secret, for the attempt that is running; from now on it is masked in what that leaves behind.

        Give the name, or a reference as steps have it. A thread of the job's own has to say whose it is with ``ctx``.
        """
        context = ctx or current.get()
        if context is None:
            raise Forbidden(
                "a secret is shown only to an attempt that is running", remedy="call this inside a job, or give its ctx"
            )
        ref = SecretRef(secret=secret) if isinstance(secret, str) else secret
        value = await self._value(ref.secret)
        context.conceal(value)
        return ref.prefix + value

    async def reveal_text(self, ctx: Context, text: Text) -> str:
        """A text of a step as it is, or the secret it stands for."""
        return text if isinstance(text, str) else await self.reveal(text, ctx)

    async def _value(self, name: str) -> str:
        database = await self._open()
        for again in (True, False):
            # The row before the keys: while they are rotated, its key is in the file for longer than it is in use.
            row = await secrets.get(database, name)
            if row is None:
                raise _no_secret(name)
            keys = await asyncio.to_thread(secret_encryption.find_or_refuse, self._settings())
            try:
                return keys.open(row)
            except UnknownKey:
                if not again:
                    raise
        raise AssertionError("unreachable")

    async def _keys_for(self, held: dict[str, int]) -> Keys:
        """The keys to seal with. A new one is made only while nothing depends on an old one."""
        find = secret_encryption.find_or_refuse if held else secret_encryption.find_or_make
        keys = await asyncio.to_thread(find, self._settings())
        _refuse_strange(held, keys)
        return keys


def _refuse_strange(held: dict[str, int], keys: Keys) -> None:
    strange = {key_id: count for key_id, count in held.items() if key_id not in keys}
    if strange:
        key_id, count = next(iter(strange.items()))
        raise Conflict(
            f"{count} secrets are sealed with the master key {key_id}, which is not in {keys.origin}",
            field="master_key",
            remedy="give the key they were sealed with: alone, or after a new one to rotate to",
        )


def _check(value: str) -> None:
    stored_values.storable_text(value, field="value", limit=LARGEST)
    if len(value.strip()) < SHORTEST:
        raise Invalid(
            f"is shorter than {SHORTEST} characters, which could not be masked",
            field="value",
            remedy="take a longer one: so short a text is found everywhere by chance",
        )


def _no_secret(name: str) -> NotFound:
    return NotFound(f"there is no secret named {name!r:.80}", remedy=f"tenuto secret set {name:.80}")
