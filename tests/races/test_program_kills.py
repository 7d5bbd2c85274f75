"""Programs of a worker killed with SIGKILL end within a second (B57), including their descendants."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenuto import Step, Tenuto, manual
from tests.races.processes import Workers, is_running
from tests.races.table_queries import Observer
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
SCRIPT = """
    trap "" TERM HUP INT
    sleep 600 & echo $! >>"$1"
    (setsid sh -c 'trap "" TERM HUP; echo $$ >>"$0"; sleep 600; sleep 600' "$1" >&- 2>&- <&- &)
    while [ $(wc -l <"$1") -lt 2 ]; do sleep 0.01; done
    echo $$ >>"$1"
    while :; do echo flood; done
"""


async def test_programs_and_their_descendants_end_soon_after_their_worker(
    app: Tenuto, observer: Observer, workers: Workers, tmp_path: Path
) -> None:
    files = [tmp_path / f"pids-{number}" for number in range(3)]
    steps = [
        Step.executable("/bin/sh", "-c", SCRIPT, "sh", str(file), name=file.name, on_lost="fail") for file in files
    ]
    app.schedule("Programs", manual(), [steps])
    await app.schedules.deploy()
    worker = await workers.start("host").wait_until_ready()
    await app.schedules.run("Programs")

    async def started() -> list[int]:
        pids = [int(pid) for file in files if file.exists() for pid in file.read_text().split()]
        return pids if len(pids) == 9 else []

    pids = await eventually(started, timeout=30, what="all of them run")
    family = {*pids, *worker.descendants()}
    assert len(family) >= 12, "three processes each, and their supervisor"
    assert all(is_running(pid) for pid in family)

    await workers.kill(worker)

    async def gone() -> bool:
        return not any(is_running(pid) for pid in family)

    # It takes a second; on a stalled machine it may take longer, but never minutes.
    await eventually(gone, timeout=8, what="no process is left")
    await workers.start("host").wait_until_ready()
    await observer.until_all_ended(within=20)
    assert await observer.count("activities", "reason = 'lost'") == 3
