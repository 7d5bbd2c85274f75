"""Workflows whose code changes in flight: real workers with different programs, which are killed with kill -9."""

from __future__ import annotations

import signal
from collections import Counter
from functools import partial
from uuid import UUID

import pytest

from tenuto import Tenuto
from tests.cli.conftest import Service, Shell
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

PARTS = """
import asyncio
from pathlib import Path
from tenuto import Context, Tenuto

app = Tenuto()


async def mark(text: str, hold: bool = False) -> str:
    with open("journal", "a") as journal:
        journal.write(text + "\\n")
    while hold and not Path("released").exists():
        await asyncio.sleep(0.05)
    return text


@app.job(queue="slow")
async def pack(part: str) -> str:
    return await mark(f"pack {part}")


async def branch(ctx: Context, name: str) -> str:
    await ctx.step.using(name="before")(mark, f"before {name}")
    await ctx.sleep("1s")
    return await ctx.step.using(name="after")(mark, f"after {name}")
"""
VERSIONS = {
    "1": '''

@app.workflow(name="first", version="1")
async def first_1(ctx: Context) -> str:
    return await ctx.step.using(name="one")(mark, "one", True)


@app.workflow(name="ship", version="1")
async def ship_1(ctx: Context) -> list[str]:
    done = await ctx.gather(branch(ctx, "a"), ctx.run(pack, "x"), branch(ctx, "b"), ctx.run(pack, "y"))
    return [*done, await ctx.step.using(name="last")(mark, "last", True)]
''',
    "2": '''

@app.workflow(name="first", version="2")
async def first_2(ctx: Context) -> str:
    return await ctx.step.using(name="two")(mark, "two", True)


@app.workflow(name="ship", version="2")
async def ship_2(ctx: Context) -> list[str]:
    return [await ctx.step.using(name="other")(mark, "other"), *await ctx.gather(branch(ctx, "c"), ctx.run(pack, "z"))]
''',
}  # fmt: skip


def start_worker(shell: Shell, versions: str, queues: str = "default") -> Service:
    (shell.folder / f"program{versions}.py").write_text(PARTS + "".join(VERSIONS[each] for each in versions))
    service = shell.start_service(
        "worker", "--app", f"program{versions}:app", "--queues", queues, "--slots", "2", "--lease", "5"
    )
    service.wait_for_line("worker started")
    return service


def kill(service: Service) -> None:
    assert service.stop(signal.SIGKILL) == -signal.SIGKILL


def read_journal(shell: Shell) -> Counter[str]:
    journal = shell.folder / "journal"
    return Counter(journal.read_text().splitlines() if journal.exists() else [])


async def recover(app: Tenuto) -> None:
    """Let the leases of killed workers expire, and delayed tasks become due."""
    database = await app.open()
    await database.write_all(
        "UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE state = 'running' RETURNING id"
    )
    await database.write_all("UPDATE tenuto.tasks SET run_at = now() WHERE state = 'scheduled' RETURNING id")


async def test_run_whose_worker_is_killed_in_its_first_step_keeps_its_version(shell: Shell, url: str) -> None:
    old = start_worker(shell, "1")
    id = UUID(shell("run", "first", "--app", "program1:app", "-q").out.strip())
    await eventually(lambda: read_journal(shell)["one"] == 1)
    kill(old)
    (shell.folder / "released").touch()
    async with Tenuto(url, home=shell.folder / "caller") as app:
        start_worker(shell, "12")
        await recover(app)
        record = await app.wait(id, timeout=60)
    assert (record.state, record.output) == ("completed", "one")
    assert read_journal(shell) == {"one": 2}


async def test_open_branches_and_children_survive_kills_and_a_changed_program(shell: Shell, url: str) -> None:
    old = start_worker(shell, "1")
    id = UUID(shell("run", "ship", "--app", "program1:app", "-q").out.strip())
    async with Tenuto(url, home=shell.folder / "caller") as app:

        async def is_parked() -> bool:
            task = await app.task(id)
            return task.state == "scheduled" and task.fence > 0

        async def has_reason(code: str) -> bool:
            return any(each.code == code for each in (await app.why(id)).reasons)

        await eventually(is_parked, what="two branches sleep, two children wait for a worker")
        kill(old)

        new = start_worker(shell, "2")  # it does not have version 1, and leaves the run alone
        await eventually(partial(has_reason, "unknown_version"), timeout=20)
        kill(new)

        both = start_worker(shell, "12", "default,slow")
        await recover(app)
        await eventually(lambda: read_journal(shell)["last"] == 1, timeout=30)
        kill(both)

        (shell.folder / "released").touch()
        start_worker(shell, "21", "default,slow")
        await recover(app)
        record = await app.wait(id, timeout=60)
    assert (record.state, record.output) == ("completed", ["after a", "pack x", "after b", "pack y", "last"])
    steps = ("before a", "before b", "after a", "after b", "pack x", "pack y")
    assert read_journal(shell) == {**dict.fromkeys(steps, 1), "last": 2}, "only the killed step ran again"
