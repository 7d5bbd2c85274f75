"""The primary is killed under load and its synchronous standby is promoted: nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.failover.services import assert_nothing_lost_repeated_or_skipped, services_under_load
from tests.races.effect_ledger import Ledger
from tests.races.processes import ProcessPool
from tests.support.repetition_counts import times
from tests.support.replication import Cluster, Server, replicate_synchronously

FAILOVERS = times(2, in_a_proof=5)
RESUME_SECONDS = 10.0


async def test_failovers_to_a_synchronous_standby_lose_repeat_and_skip_nothing(
    cluster: Cluster, process_pool: ProcessPool, ledger: Ledger, tmp_path: Path
) -> None:
    primary, standby = await cluster.start(synchronous=True)
    assert standby is not None
    slowest = 0.0
    async with services_under_load(cluster.url(), process_pool, tmp_path, ledger) as load:
        for number in range(FAILOVERS):
            await load.until_busy(more_effects=100)
            primary.kill()
            if number % 2:
                await load.until_refused()
            promoted_at = time.monotonic()
            standby.promote()
            slowest = max(slowest, await load.seconds_until_resumed(promoted_at))
            primary, standby = standby, primary
            if number < FAILOVERS - 1:
                await _replicate_again(cluster, primary, standby)
        await load.until_busy(more_effects=10)
        await load.stop()
        figures = await assert_nothing_lost_repeated_or_skipped(primary.url, load)
        assert not any(process.has_ended() for process in load.workers.started)
    print(f"{FAILOVERS} failovers, {figures}, longest interruption {slowest:.1f} s after the promotion")
    assert slowest < RESUME_SECONDS
    assert figures["repeated requests"], "the outages were longer than the retries of a statement"


async def _replicate_again(cluster: Cluster, primary: Server, standby: Server) -> None:
    await asyncio.to_thread(cluster.rebuild_standby, primary, standby)
    await standby.until_answering(standby=True)
    await replicate_synchronously(primary, standby)
