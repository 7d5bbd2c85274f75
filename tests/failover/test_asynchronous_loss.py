"""What a promotion of an asynchronous standby loses under load: the last commits, and nothing before them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from tenuto import Job, Tenuto
from tenuto.errors import StoreError
from tenuto.settings import load_settings
from tests.failover.test_lost_commits import task_ids
from tests.support.repetition_counts import times
from tests.support.replication import Cluster, Server, until_streaming
from tests.support.waiting import eventually

PROMOTIONS = times(2, in_a_proof=10)
CALLERS = 20
LONGEST_LOSS_SECONDS = 5.0
"""Far more than a standby that streams is behind; a promotion that loses more has lost more than the last commits."""


@dataclass
class _Callers:
    """Callers that enqueue without a pause, and when each task was accepted."""

    app: Tenuto
    job: Job[..., Any]
    accepted_at: dict[UUID, float] = field(default_factory=dict)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def enqueue(self) -> None:
        while not self.is_over.is_set():
            try:
                task = await self.app.enqueue(self.job, 1)
            except StoreError:
                return  # the primary is gone
            self.accepted_at[task.id] = time.monotonic()


async def test_promotion_of_an_asynchronous_standby_loses_only_the_last_commits(
    cluster: Cluster, tmp_path: Path
) -> None:
    primary, standby = await cluster.start()
    assert standby is not None
    losses = []
    for number in range(PROMOTIONS):
        losses.append(await _lose(primary, standby, tmp_path / str(number)))
        primary, standby = standby, primary
        await asyncio.to_thread(cluster.rebuild_standby, primary, standby)
        await standby.until_answering(standby=True)
        await until_streaming(primary, standby)
    tasks, seconds, accepted = zip(*losses, strict=True)
    print(
        f"{PROMOTIONS} promotions under {sum(accepted)} accepted tasks of {CALLERS} callers: lost tasks {list(tasks)},"
        f" lost milliseconds {[round(each * 1000, 1) for each in seconds]}"
    )
    assert max(seconds) < LONGEST_LOSS_SECONDS


async def _lose(primary: Server, standby: Server, home: Path) -> tuple[int, float, int]:
    """Kill a primary under load and promote its standby; return the lost tasks, seconds, and what was accepted."""
    app = Tenuto(settings=load_settings(database=primary.url, home=home))

    @app.job(name="touch")
    async def touch(number: int) -> None:
        """Not run."""

    callers = _Callers(app, touch)
    running = [asyncio.create_task(callers.enqueue()) for _ in range(CALLERS)]
    await eventually(lambda: len(callers.accepted_at) > 1000, timeout=60, what="a thousand tasks are accepted")
    primary.kill()
    callers.is_over.set()
    standby.promote()
    await standby.until_answering(standby=False)
    await asyncio.wait(running)
    await app.close()
    kept = set(await task_ids(standby.url))
    lost = [at for id, at in callers.accepted_at.items() if id not in kept]
    last = max(callers.accepted_at.values())
    return len(lost), (last - min(lost) if lost else 0.0), len(callers.accepted_at)
