"""The web service reads lists and pages from a streaming standby, as long as it is recent enough for the caller."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import httpx2 as httpx
import pytest
from fastapi.routing import iter_route_contexts

from tenuto import Tenuto
from tenuto.api.api_route import ApiRoute
from tenuto.api.replica_reads import MAX_AGE_HEADER, STALENESS_HEADER
from tenuto.clock import monotonic_seconds
from tenuto.model.access.actors import Role
from tenuto.postgres.database import Database
from tenuto.postgres.servers.read_replica import ReadReplica, ReplicaState, _find_problem
from tenuto.settings import load_settings
from tenuto.web.application import create_web_application
from tenuto.web.server import web_server
from tests.support.replication import Cluster, Server, until_streaming
from tests.support.waiting import eventually

HTML = {"Accept": "text/html"}
LIST = "/api/v1/manifests"
UNLIMITED = 3600.0


@asynccontextmanager
async def replaying_is_paused(standby: Server) -> AsyncIterator[None]:
    """Let the standby receive, but not show, what is committed in the block."""
    await standby.value("SELECT pg_wal_replay_pause()")

    async def is_paused() -> bool:
        return await standby.value("SELECT pg_get_wal_replay_pause_state()") == "paused"

    await eventually(is_paused, what="the standby shows no further commits")
    try:
        yield
    finally:
        await standby.value("SELECT pg_wal_replay_resume()")


class Site:
    """A web service with a read replica, and callers with keys of their own."""

    def __init__(self, app: Tenuto, address: str, clients: AsyncExitStack) -> None:
        self.app = app
        self.address = address
        self._clients = clients

    async def caller(self, name: str) -> httpx.AsyncClient:
        _, key = await self.app.api_keys.create(name, Role.EDITOR)
        headers = {"Authorization": f"Bearer {key}"}
        client = httpx.AsyncClient(base_url=self.address, headers=headers, timeout=60)
        return await self._clients.enter_async_context(client)


@asynccontextmanager
async def site_reading_from(primary: Server, standby: Server, home: Path) -> AsyncIterator[Site]:
    settings = load_settings(
        database=primary.url,
        database_readonly=standby.url,
        database_readonly_max_staleness_seconds=UNLIMITED,
        home=home,
    )
    app = Tenuto(settings=settings)

    @app.job
    async def copy_table() -> None:
        """Never run."""

    async with app, AsyncExitStack() as clients, web_server(app, port=0) as address:
        yield Site(app, address, clients)


async def create(client: httpx.AsyncClient, name: str, **options: object) -> None:
    body = {"external_id": name, "job": "copy_table", "on_demand": True}
    done = await client.post(LIST, json=body, **options)  # type: ignore[arg-type]
    assert done.status_code == 201, done.text


async def names(client: httpx.AsyncClient, **headers: str) -> tuple[list[str], bool]:
    """Return the names in the list, and whether it was read from the replica."""
    found = await client.get(LIST, headers=headers)
    assert found.status_code == 200, found.text
    staleness = found.headers.get(STALENESS_HEADER)
    assert staleness is None or float(staleness) >= 0
    return [each["external_id"] for each in found.json()["items"]], staleness is not None


async def until_replica_is_read(client: httpx.AsyncClient) -> None:
    async def is_read() -> bool:
        return (await names(client))[1]

    await eventually(is_read, timeout=60, what="lists are read from the replica")


async def test_lists_and_pages_come_from_the_replica_but_callers_see_their_own_changes(
    cluster: Cluster, tmp_path: Path
) -> None:
    primary, standby = await cluster.start()
    assert standby is not None
    async with site_reading_from(primary, standby, tmp_path) as site:
        writer, reader = await site.caller("writer"), await site.caller("reader")
        await create(writer, "before")
        await until_replica_is_read(reader)
        newest = {MAX_AGE_HEADER: "0"}
        await eventually(
            lambda: _is(reader, (["before"], True), **newest), timeout=60, what="the standby is waited for"
        )
        async with replaying_is_paused(standby):
            await create(writer, "changed")
            assert await names(reader) == (["before"], True)
            assert await names(writer) == (["before", "changed"], False), "the own change"

            shown = await reader.get("/manifests", headers=HTML)
            assert "/manifests/changed" not in _main(shown)
            assert "replica, up to" in shown.text
            assert float(shown.headers[STALENESS_HEADER]) > 0
            assert await names(reader) == (["before"], True)
            assert await names(reader, **newest) == (["before", "changed"], False)
            assert await names(reader) == (["before", "changed"], False), "not older than what it has seen"
            own = await writer.get("/manifests", headers=HTML)
            assert "/manifests/changed" in _main(own)
            assert ">primary</span>" in own.text

            other = await site.caller("other")
            assert await names(other) == (["before"], True)
            single = await other.get("/manifests/changed", headers=HTML)
            assert (single.status_code, STALENESS_HEADER in single.headers) == (200, False), "not on the replica yet"
            single = await reader.get(f"{LIST}/changed")
            assert (single.status_code, STALENESS_HEADER in single.headers) == (200, False)
            forms = await reader.get("/manifests/before/edit", headers=HTML)
            assert (forms.status_code, STALENESS_HEADER in forms.headers) == (200, False)
        await eventually(
            lambda: _is(writer, (["before", "changed"], True)), timeout=60, what="the change is on the replica"
        )
        assert (await reader.get("/", headers=HTML)).headers[STALENESS_HEADER], "the overview"


def _main(page: httpx.Response) -> str:
    assert page.status_code == 200, page.text
    return page.text[page.text.index("<main") :]


async def _is(client: httpx.AsyncClient, expected: tuple[list[str], bool], **headers: str) -> bool:
    return await names(client, **headers) == expected


def test_only_lists_and_reports_for_all_roles_may_read_the_replica() -> None:
    """What programs decide by, and who may do what, comes from the primary."""
    api = create_web_application(Tenuto("postgresql://nowhere"))
    routes = [each.route for each in iter_route_contexts(api.routes) if isinstance(each.route, ApiRoute)]
    assert not [each.path for each in routes if each.may_read_replica and each.methods != {"GET"}]
    reading = {each.path for each in routes if each.may_read_replica}
    waiting = {each.path for each in routes if "wait" in each.query_parameters and each.path.startswith("/api/")}
    assert len(waiting) >= 2
    assert not reading & waiting
    assert reading >= {"/api/v1/tasks", "/api/v1/activities/count", "/api/v1/overview", "/api/v1/queues", "/", "/tasks"}
    assert not reading & {
        "/api/v1/keys", "/api/v1/sessions", "/api/v1/secrets", "/api/v1/audit", "/api/v1/invitations", "/api/v1/events",
        "/api/v1/approvals/{id}", "/keys", "/secrets", "/audit", "/account", "/settings", "/login", "/readyz",
        "/metrics",
    }  # fmt: skip
    assert not [path for path in reading if path.endswith(("/edit", "/why", "/explain"))]


async def test_browser_sees_its_own_change_at_another_web_service(cluster: Cluster, tmp_path: Path) -> None:
    primary, standby = await cluster.start()
    assert standby is not None
    async with (
        site_reading_from(primary, standby, tmp_path / "one") as one,
        site_reading_from(primary, standby, tmp_path / "two") as two,
        httpx.AsyncClient(timeout=60) as browser,
    ):
        _, key = await one.app.api_keys.create("ana", Role.EDITOR)
        own = {"Origin": one.address, "Sec-Fetch-Site": "same-origin", "Tenuto-Page": "1"}
        done = await browser.post(f"{one.address}/login", data={"credential": key}, headers=own)
        assert done.status_code == 303, done.text
        reader = await two.caller("reader")
        await until_replica_is_read(reader)
        async with replaying_is_paused(standby):
            body = {"external_id": "changed", "job": "copy_table", "on_demand": True}
            done = await browser.post(f"{one.address}{LIST}", json=body, headers=own)
            assert done.status_code == 201, done.text
            assert await names(reader) == ([], True)
            seen = await browser.get(f"{two.address}{LIST}")
            assert [each["external_id"] for each in seen.json()["items"]] == ["changed"]
            assert STALENESS_HEADER not in seen.headers


async def test_lists_come_from_the_primary_while_the_replica_is_away_or_promoted(
    cluster: Cluster, tmp_path: Path
) -> None:
    primary, standby = await cluster.start()
    assert standby is not None
    async with site_reading_from(primary, standby, tmp_path) as site:
        writer, reader = await site.caller("writer"), await site.caller("reader")
        await until_replica_is_read(reader)
        standby.kill()
        await create(writer, "first")
        assert (await names(reader))[0] == ["first"], "the query that fails is repeated on the primary"
        page = await reader.get("/manifests", headers=HTML)
        assert "/manifests/first" in _main(page)

        async def page_says_so() -> bool:
            return ">replica not used</span>" in (await reader.get("/manifests", headers=HTML)).text

        await eventually(page_says_so, timeout=30, what="the page says that the replica is away")
        standby.start()
        await until_replica_is_read(reader)

        standby.promote()  # two servers accept writes now; only one of them is the primary of the service
        await create(writer, "second")
        await eventually(
            lambda: _is(reader, (["first", "second"], False)), timeout=30, what="the former replica is left"
        )
        await eventually(page_says_so, timeout=30, what="the page says that the replica is not used")
        assert await names(reader) == (["first", "second"], False)


async def test_replica_is_used_only_while_its_state_is_recent_enough(cluster: Cluster) -> None:
    primary, standby = await cluster.start()
    assert standby is not None
    db = await Database.open(primary.url)

    async def open_primary() -> Database:
        return db

    replica = ReadReplica(standby.url, open_primary, max_staleness_seconds=UNLIMITED)
    try:
        assert await replica.choose(UNLIMITED) is None, "not connected yet"
        await eventually(lambda: _cycle(replica), timeout=30, what="the replica is used")
        state = await replica.choose(UNLIMITED)
        assert state is not None
        reader = state.database
        assert await reader.fetch_value("SELECT pg_is_in_recovery()") is True
        assert await reader.fetch_value("SELECT count(*) FROM tenuto.live_logs") == 0, "unlogged tables: the primary"
        assert await reader.write_value("CREATE TABLE written (id integer)") is None, "changes go to the primary"
        async with replaying_is_paused(standby):
            await db.write_value("INSERT INTO written VALUES (1)")
            await replica.run_cycle()
            changed_at = monotonic_seconds()
            assert await replica.choose(0) is None
            assert await replica.choose(UNLIMITED) is not None
            assert replica.staleness_seconds is not None
            before = replica.staleness_seconds
            await replica.run_cycle()
            assert replica.staleness_seconds > before, "the state gets older"
            replica.max_staleness_seconds = monotonic_seconds() - changed_at
            assert await replica.choose(UNLIMITED) is None, "older than the setting allows"
        replica.max_staleness_seconds = UNLIMITED
        await eventually(lambda: _has_state_of(replica, changed_at), timeout=30, what="the replica has the change")
        assert await reader.fetch_value("SELECT count(*) FROM written") == 1
    finally:
        await replica.close()
        await db.close()


async def _cycle(replica: ReadReplica) -> ReplicaState | None:
    await replica.run_cycle()
    return await replica.choose(UNLIMITED)


async def _has_state_of(replica: ReadReplica, at: float) -> bool:
    state = await _cycle(replica)
    return state is not None and state.current_at > at


async def test_other_standby_of_an_address_is_not_read_before_it_is_measured(cluster: Cluster) -> None:
    primary, first = await cluster.start()
    assert first is not None
    second = cluster.create_standby(primary)
    second.start()
    await second.until_answering(standby=True)
    await until_streaming(primary, second)
    db = await Database.open(primary.url)

    async def open_primary() -> Database:
        return db

    replica = ReadReplica(cluster.url(first, second, target=None), open_primary, max_staleness_seconds=UNLIMITED)
    try:
        state = await eventually(lambda: _cycle(replica), timeout=30, what="the replica is used")
        port = await state.database.fetch_value("SELECT inet_server_port()")
        used, other = (first, second) if port == first.port else (second, first)
        await db.write_value("CREATE TABLE written AS SELECT 1 AS id")
        state = await eventually(lambda: replica.choose(0), timeout=30, what="the used standby has the table")
        assert used.process is not None
        used.process.send_signal(signal.SIGSTOP)  # open connections work, new ones would lead to the other standby
        try:
            query = "SELECT inet_server_port() FROM pg_sleep(0.2)"
            queries = {asyncio.create_task(state.database.fetch_value(query)) for _ in range(3)}
            await asyncio.wait(queries, timeout=3)  # the other server of an address is tried after a second
        finally:
            used.process.send_signal(signal.SIGCONT)
        assert {await each for each in queries} <= {used.port, primary.port}
        used.kill()
        assert await state.database.fetch_value("SELECT inet_server_port()") == primary.port
        state = await eventually(lambda: _cycle(replica), timeout=30, what="the other standby is used")
        assert await state.database.fetch_value("SELECT inet_server_port()") == other.port
        assert await state.database.fetch_value("SELECT count(*) FROM written") == 1
    finally:
        await replica.close()
        await db.close()


@pytest.mark.parametrize(
    ("replica", "problem"),
    [
        ({}, None),
        ({"system": 2}, "it is a server of another database"),
        ({"is_standby": False}, "it is not a standby"),
        ({"timeline": 1}, "it is on timeline 1, and the primary on timeline 2"),
    ],
)
def test_replica_with_another_history_is_not_used(replica: dict[str, object], problem: str | None) -> None:
    primary = {"system": 1, "timeline": 2, "position": 100}
    found = {"system": 1, "timeline": 2, "position": 100, "is_standby": True, **replica}
    assert _find_problem(found, primary) == problem  # type: ignore[arg-type]


async def test_measured_position_of_an_idle_primary_is_reached(cluster: Cluster) -> None:
    """At the start of a page of the log, primary and standby report different positions."""
    primary, standby = await cluster.start()
    assert standby is not None
    db = await Database.open(primary.url)

    async def open_primary() -> Database:
        return db

    connection = await asyncpg.connect(primary.url)
    replica = ReadReplica(standby.url, open_primary, max_staleness_seconds=UNLIMITED)
    try:
        await eventually(lambda: _cycle(replica), timeout=30, what="the replica is used")
        for _ in range(3):
            await connection.fetchval("SELECT pg_switch_wal()")  # the next position is after the header of a segment
            await eventually(lambda: _reaches_now(replica), timeout=30, what="the state is that of now")
    finally:
        await connection.close()
        await replica.close()
        await db.close()


async def _reaches_now(replica: ReadReplica) -> bool:
    return await _has_state_of(replica, monotonic_seconds())
