"""Secrets (B93–B98): encrypted in the database, revealed only to attempts, and redacted in all output."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tenuto import Actor, Context, RetryPolicy, Step, Tenuto, logs, manual
from tenuto.errors import Conflict, Forbidden, Invalid, NotFound
from tenuto.jobs import redaction
from tenuto.jobs.redaction import Redactor
from tenuto.secret_encryption import MasterKey, UnreadableSecret
from tenuto.settings import load_settings
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

CANARY = 'kanarie/4711 ünder+the="rose"'


@pytest.fixture(autouse=True)
def _restore_redaction() -> Iterator[None]:
    original = logs._redact
    yield
    Redactor.__init__(redaction.process_redactor, redaction._MAX_PROCESS_VALUES)
    logs._redact = original


@pytest.fixture
def key(app: Tenuto) -> MasterKey:
    """The master key of the test's app."""
    key = MasterKey.new()
    configure_keys(app, key)
    return key


def configure_keys(app: Tenuto, *keys: MasterKey) -> None:
    text = " ".join(key.text for key in keys)
    app.settings = app.settings.model_copy(update={"master_key": SecretStr(text) if keys else None})


async def dump_database(app: Tenuto) -> str:
    """Return the contents of all tables as text."""
    database = await app.open()
    tables = await database.fetch_all("SELECT tablename FROM pg_tables WHERE schemaname = 'tenuto'")
    rows = [
        row[0]
        for table in tables
        for row in await database.fetch_all(f'SELECT to_jsonb(whole)::text FROM tenuto."{table["tablename"]}" AS whole')
    ]
    return "\n".join([*rows, *(await _bytes_in(app))])


async def _bytes_in(app: Tenuto) -> list[str]:
    rows = await (await app.open()).fetch_all("SELECT wrapped, sealed FROM tenuto.secrets")
    return [value.decode("latin-1") for row in rows for value in (row["wrapped"], row["sealed"])]


async def reveal_in_job(app: Tenuto, worker: WorkerFactory, name: str) -> Any:
    """Return the value that a job gets for a secret, unredacted, or the error of the attempt."""
    seen: list[str] = []

    @app.job(name=f"look{len(app.jobs.jobs_by_name)}", max_attempts=1)
    async def look() -> None:
        seen.append(await app.secrets.reveal(name))

    async with worker():
        record = await app.wait(await app.enqueue(look), timeout=20)
    return seen[0] if seen else record.error


@pytest.mark.usefixtures("key")
async def test_revealed_secret_is_redacted_everywhere(
    app: Tenuto, worker: WorkerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    assert await app.acting_as(Actor.user("ana")).secrets.set("canary", CANARY) == 1
    with raises_code("secret.reveal.no_attempt", Forbidden):
        await app.secrets.reveal("canary")

    def remember(token: str) -> str:
        print(f"kept {token}")
        return token

    async def fetch(ctx: Context) -> str:
        value = await app.secrets.reveal("canary")
        ctx.warn(f"fetched {value}")
        return f"token {value}"

    chained = app.chain("chained", fetch, remember)

    @app.job(retry=RetryPolicy(max_attempts=2, base_seconds=0))
    async def fail(ctx: Context) -> None:
        value = await app.secrets.reveal("canary", ctx)
        assert value == CANARY
        ctx.progress(1, 1, value)
        logging.getLogger("app").warning("with %s", value)
        raise ValueError(f"cannot use {value!r}: {json.dumps(value)}") from KeyError(value)

    @app.job
    async def tell(ctx: Context) -> dict[str, str]:
        value = await app.secrets.reveal("canary")
        print(value)
        return {"basic": base64.b64encode(f"me:{value}".encode()).decode(), "plain": value}

    app.schedule("leaky", manual(), [Step.job(tell), Step.job(fail)])
    await app.schedules.deploy()
    app.manifest("leaky-item", fail, on_demand=True)
    await app.manifests.deploy()
    with caplog.at_level(logging.DEBUG):
        async with worker(), app.scheduler():
            records = [await app.wait(await app.enqueue(job), timeout=20) for job in (chained, fail, tell)]
            run = await app.schedules.run("leaky")
            await eventually(lambda: _ended(app, run.execution_id))
            await app.bulk_enqueue("leaky-item", [{}])
            await eventually(lambda: app.dead_letters.list())
    assert [record.state for record in records] == ["completed_with_warning", "failed", "completed"]
    assert records[0].error["message"] == "fetched ***"
    assert records[0].output == "token ***"
    assert records[2].output["plain"] == "***"
    output = await dump_database(app) + caplog.text + "".join(map(repr, records))
    assert '"action": "secret.set"' in output
    assert "canary" in output
    encoded = base64.b64encode(CANARY.encode())[4:20].decode()
    for form in (CANARY, "kanarie", "4711 ü", "4711 \\u00fc", "4711%20", encoded, "%C3%BCnder"):
        assert form not in output


@pytest.mark.usefixtures("key")
async def test_chain_passes_unredacted_results_that_contain_a_secret_by_chance(
    app: Tenuto, worker: WorkerFactory
) -> None:
    await app.secrets.set("year", "2024")
    await app.secrets.set("word", "value")
    seen: list[object] = []

    async def count() -> int:
        await app.secrets.reveal("year")
        await app.secrets.reveal("word")
        return 202401

    def name(number: int) -> dict[str, str]:
        seen.append(number)
        return {"value": f"report-{number + 1}"}

    def tell(names: dict[str, str]) -> str:
        seen.append(names)
        return "told"

    async with worker():
        task = await app.enqueue(app.chain("counted", count, name, tell))
        record = await app.wait(task, timeout=20)

    assert (record.state, record.output) == ("completed", "told"), record.error
    assert seen == [202401, {"value": "report-202402"}]
    outputs = [step.output for step in await app.chain_steps(task.id)]
    assert outputs == ["***", {"***": "report-***02"}, "told"]
    assert "202402" not in await dump_database(app)


@pytest.mark.usefixtures("key")
async def test_resumed_chain_fails_if_it_needs_a_redacted_result(app: Tenuto, worker: WorkerFactory) -> None:
    await app.secrets.set("canary", CANARY)
    calls: list[str] = []

    async def fetch() -> str:
        calls.append("fetch")
        return await app.secrets.reveal("canary")

    def count(token: str) -> int:
        calls.append(token)
        return len(token)

    def fail(number: int) -> int:
        calls.append("fail")
        if calls.count("fail") == 1:
            raise ConnectionError("not yet")
        return number

    def use(token: str, number: int) -> str:
        raise AssertionError("must not run")

    again = RetryPolicy(max_attempts=3, base_seconds=0, jitter=0)
    async with worker():
        unneeded = await app.wait(await app.enqueue(app.chain("unneeded", fetch, count, fail, retry=again)), timeout=20)
        assert (unneeded.state, unneeded.output) == ("completed", len(CANARY)), "the redacted result is not needed"
        assert calls == ["fetch", CANARY, "fail", "fail"]
        calls.clear()
        needed = await app.wait(
            await app.enqueue(app.chain("needed", fetch, count, fail, use, retry=again)), timeout=20
        )
    assert (needed.state, needed.attempt) == ("failed", 2)
    assert "the result of step fetch contained a secret" in needed.error["message"]
    assert calls == ["fetch", CANARY, "fail", "fail"]


async def _ended(app: Tenuto, execution_id: Any) -> bool:
    return (await app.executions.get(execution_id)).ended_at is not None


async def test_exchanged_or_damaged_secret_rows_and_unknown_keys_are_errors(
    app: Tenuto, worker: WorkerFactory, key: MasterKey
) -> None:
    await app.secrets.set("one", "value of one")
    await app.secrets.set("two", "value of two")
    database = await app.open()
    swap = "UPDATE tenuto.secrets AS a SET wrapped = b.wrapped, sealed = b.sealed FROM tenuto.secrets AS b"
    await database.fetch_all(f"{swap} WHERE a.name = 'one' AND b.name = 'two'")
    failure = await reveal_in_job(app, worker, "one")
    assert "the stored row of secret 'one' is damaged or was replaced" in failure["message"]
    assert await reveal_in_job(app, worker, "two") == "value of two"
    await database.fetch_all(
        "UPDATE tenuto.secrets SET sealed = set_byte(sealed, 20, get_byte(sealed, 20) # 1) WHERE name = 'two'"
    )
    assert "is damaged or was replaced" in (await reveal_in_job(app, worker, "two"))["message"]

    other = MasterKey.new()
    configure_keys(app, other)
    with raises_code("secret.master_key.unknown", Conflict) as conflict:
        await app.secrets.set("three", "value of three")
    assert f"2 secrets are encrypted with the master key {key.id}" in conflict.value.message
    assert f"encrypted with the master key {key.id}" in (await reveal_in_job(app, worker, "two"))["message"]
    configure_keys(app)
    with raises_code("settings.master_key.missing", Invalid) as refusal:
        await app.secrets.set("three", "value of three")
    assert "TENUTO_MASTER_KEY_FILE" in (refusal.value.remedy or "")
    with raises_code("settings.master_key.missing", Invalid):
        await app.secrets.rotate()


async def test_secret_in_external_database_requires_a_master_key(app: Tenuto) -> None:
    with raises_code("settings.master_key.missing", Invalid) as refusal:
        await app.secrets.set("one", "value of one")
    assert "head -c 32" in (refusal.value.remedy or "")
    assert await app.secrets.list() == []
    assert await app.secrets.rotate() == 0


async def test_master_key_rotation_keeps_every_secret_readable(
    app: Tenuto, worker: WorkerFactory, key: MasterKey
) -> None:
    for number in range(3):
        await app.secrets.set(f"s{number}", f"value number {number}")
    assert await app.secrets.set("s1", "another value") == 2
    new = MasterKey.new()
    configure_keys(app, new, key)
    assert await app.secrets.rotate() == 3
    assert await app.secrets.rotate() == 0
    configure_keys(app, new)
    shown = [await reveal_in_job(app, worker, f"s{number}") for number in range(3)]
    assert shown == ["value number 0", "another value", "value number 2"]
    listed = await app.secrets.list()
    assert [(row.name, row.version, row.key_id) for row in listed] == [
        ("s0", 1, new.id), ("s1", 2, new.id), ("s2", 1, new.id)
    ]  # fmt: skip
    assert not any(hasattr(listed[0], name) for name in ("value", "sealed", "wrapped"))
    assert [row.name for row in await app.secrets.list(after="s1", limit=1)] == ["s2"]
    await app.secrets.delete("s1")
    with raises_code("secret.not_found", NotFound):
        await app.secrets.delete("s1")
    assert "no secret named 's1'" in (await reveal_in_job(app, worker, "s1"))["message"]


async def test_master_key_rotation_replaces_the_key_file_in_the_home_directory(
    app: Tenuto, url: str, tmp_path: Path
) -> None:
    """Use the settings of an embedded database with the database of the test."""
    database = await app.open()
    own = Tenuto(settings=load_settings(home=tmp_path / "own"))
    own.secrets._open_shared = app.open  # the settings have no URL, as with the embedded database
    await own.secrets.set("one", "value of one")
    file = tmp_path / "own" / "master.key"
    before = file.read_text()
    assert await own.secrets.count_old_keys() == 0
    assert await own.secrets.rotate() == 1
    assert file.read_text().split()[1:] == before.split(), "earlier dumps need the old key"
    assert await own.secrets.count_old_keys() == 1
    assert await own.secrets._decrypt_value("one") == "value of one"
    assert await own.secrets.rotate(forget_old_keys=True) == 1
    after = file.read_text()
    assert len(after.split()) == 1
    assert after != before
    assert await own.secrets._decrypt_value("one") == "value of one"
    file.write_text(before)
    with raises_code("secret.master_key.unknown", UnreadableSecret):
        await own.secrets._decrypt_value("one")
    file.unlink()
    with raises_code("settings.master_key.missing", Invalid):
        await own.secrets.set("two", "value of two")
    assert not file.exists()
    assert await database.fetch_value("SELECT count(*) FROM tenuto.secrets") == 1


@pytest.mark.usefixtures("key")
async def test_invalid_secret_names_and_values_are_errors(app: Tenuto, worker: WorkerFactory) -> None:
    for value in ("", "abc", "  a  ", "a\0bcd", "half \ud800 a pair", "x" * 65_537):
        with pytest.raises(Invalid) as refusal:
            await app.secrets.set("name", value)
        assert refusal.value.field == "value"
    for name in ("", "a b", "${secret:x}", "x" * 201):
        with pytest.raises(Invalid) as refusal:
            await app.secrets.set(name, "a good value")
        assert refusal.value.field == "name"
    for value in ("a***b", "line one\nline two\n", "x" * 65_536, "${secret:${secret:x}}"):
        await app.secrets.set("name", value)
        assert await reveal_in_job(app, worker, "name") == value
