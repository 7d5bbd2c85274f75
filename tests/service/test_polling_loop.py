"""Polling loops: a failed cycle is repeated, and what only an operator can correct is logged once."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest

from tenuto import Tenuto
from tenuto.errors import SchemaBehind, StoreError
from tenuto.logs import Log
from tenuto.service import polling_loop
from tenuto.service.polling_loop import leave_loaded_code_out_of_garbage_collections, run_cycles


async def run_failing_cycles(errors: list[Exception | None]) -> None:
    """Run one cycle for each error; None is a cycle that succeeds."""
    waiting = list(errors)

    async def run_cycle() -> float:
        error = waiting.pop(0)
        if error is not None:
            raise error
        return 0.0

    await run_cycles(run_cycle, asyncio.Event(), lambda: not waiting, Log("tenuto.test"), "housekeeping")


def behind(version: int) -> SchemaBehind:
    return SchemaBehind(f"the schema is at {version}", code="schema.behind", remedy="run `tenuto migrate`")


async def test_loop_says_once_that_a_migration_is_missing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling_loop, "_SCHEMA_RETRY_SECONDS", 0.0)
    await run_failing_cycles([behind(1), behind(1), behind(1), behind(2), None, behind(2)])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all("service paused until migration" in line and "run `tenuto migrate`" in line for line in lines)


async def test_loop_logs_every_other_failure(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda *_: 0.0)
    error = StoreError("refused", code="database.statement_rejected")
    await run_failing_cycles([error, error, None])
    assert [record.getMessage().startswith("service cycle failed") for record in caplog.records] == [True, True]


async def test_worker_leaves_loaded_code_out_of_garbage_collections(app: Tenuto) -> None:
    leave_loaded_code_out_of_garbage_collections.cache_clear()
    gc.unfreeze()
    async with app.worker():
        assert gc.get_freeze_count() > 50_000
