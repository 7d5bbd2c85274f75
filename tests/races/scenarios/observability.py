"""Actions on activity rollups, live logs and marks of the history of the database."""

from __future__ import annotations

from tenuto.maintenance.activity_rollups import add_ended_activities
from tenuto.model.lost_commits import SeenHistory
from tenuto.model.work.rollups import BUCKET_RETENTION
from tenuto.postgres.database import Database
from tenuto.store import database_history
from tenuto.store.work import live_logs, rollups
from tests.races.scenarios.executions import finish_all
from tests.races.scenarios.scenario import LATER, Action, Preparation, Scenario, run_sql
from tests.races.scenarios.tasks import claim_tasks, enqueue


async def add_to_rollups(db: Database, scenario: Scenario) -> None:
    await add_ended_activities(db, db.clock.now())


async def delete_old_rollups(db: Database, scenario: Scenario) -> None:
    cutoff = db.clock.now() + LATER
    await rollups.expire_rollups(db, min(BUCKET_RETENTION), cutoff, 100)


async def watch_log(db: Database, scenario: Scenario) -> None:
    await live_logs.watch(db, [scenario.id("watched"), scenario.id("left by a lost worker")])


async def append_texts(db: Database, scenario: Scenario) -> None:
    watched, left = scenario.id("watched"), scenario.id("left by a lost worker")
    await live_logs.append_texts(db, [(watched, 0, "one"), (watched, 3, "two"), (left, 0, "old"), (left, 3, "new")])


async def trim_texts(db: Database, scenario: Scenario) -> None:
    await live_logs.trim_texts(db, [(scenario.id("watched"), 3)])


async def remove_live_log(db: Database, scenario: Scenario) -> None:
    await live_logs.remove_live_logs(db, [scenario.id("watched")])


async def remove_abandoned(db: Database, scenario: Scenario) -> None:
    await live_logs.remove_abandoned(db)


async def record_mark(db: Database, scenario: Scenario) -> None:
    await database_history.record_mark(db, scenario.id("process"), "worker", "worker-1", 1)


async def record_loss(db: Database, scenario: Scenario) -> None:
    found = await database_history.load_history(scenario.db, scenario.id("process"))
    seen = SeenHistory(found.system, found.timeline, found.number + 1, found.now)
    await database_history.record_loss(db, "worker", "worker-1", seen, found)


async def delete_old_history(db: Database, scenario: Scenario) -> None:
    later = db.clock.now() + LATER
    await database_history.delete_old_marks(db, later)
    await database_history.delete_old_losses(db, later)


EXPIRE_WATCHES = run_sql("UPDATE tenuto.log_watches SET watched_until = now() - interval '1 hour'")
AGE_TEXTS = run_sql("UPDATE tenuto.live_logs SET written_at = now() - interval '1 hour' WHERE text = 'old'")

ROLLUPS: tuple[Action, ...] = (
    # First: the server may have made so many transactions that the rollups need several steps to reach the present.
    add_to_rollups, Preparation(enqueue), Preparation(claim_tasks), Preparation(finish_all), add_to_rollups,
    delete_old_rollups,
)  # fmt: skip
LIVE_LOGS: tuple[Action, ...] = (
    watch_log,
    append_texts,
    trim_texts,
    remove_live_log,
    EXPIRE_WATCHES,
    AGE_TEXTS,
    remove_abandoned,
)
DATABASE_HISTORY: tuple[Action, ...] = (record_mark, record_loss, delete_old_history)
