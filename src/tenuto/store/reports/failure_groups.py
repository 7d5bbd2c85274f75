"""Failure groups: dead letters with the same fingerprint, their trend and last resolution."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from tenuto.model.work.dead_letters import DeadLetterState
from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.row_mapping import RowMapper

SQL = load_statements(__file__)

TREND_HOURS = 24


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Dead letters of the same kind of failure."""

    fingerprint: str
    dead_letter_count: int
    manifest_count: int
    external_id: str
    """External id of a manifest, the first by name; empty if no manifest is concerned."""
    job_count: int
    name: str
    """Name of a job, the first by name."""
    first_at: datetime
    last_at: datetime
    reason: str
    """Reason of the newest one."""


@dataclass(frozen=True, slots=True)
class FailureResolution:
    """Resolution of a dead letter."""

    fingerprint: str
    id: UUID
    state: DeadLetterState
    resolved_at: datetime
    resolved_by: str
    note: str | None


@dataclass(frozen=True, slots=True)
class FailureGroupDetails(FailureGroup):
    """Open dead letters of the same kind of failure, with its history."""

    manifests: Sequence[str]
    """External ids of the affected manifests."""
    hourly_counts: Sequence[int]
    """Dead letters of this kind in each of the last 24 hours, oldest first; resolved ones are counted too."""
    last_resolution: FailureResolution | None
    """How the last resolved dead letter of this kind was resolved."""


_GROUPS = RowMapper(FailureGroup, SQL.list_failure_groups, SQL.summarise_dead_letters)
_RESOLUTIONS = RowMapper(FailureResolution, SQL.list_last_resolutions)


async def list_failure_groups(
    database: Database, manifest: str | None, batch: UUID | None, limit: int
) -> list[FailureGroup]:
    """Group open dead letters by kind of failure, most frequent first."""
    return _GROUPS.all(await database.fetch_all(SQL.list_failure_groups, manifest, limit, batch))


async def summarise_dead_letters(database: Database, ids: Sequence[UUID], limit: int) -> list[FailureGroup]:
    """Count dead letters by manifest and kind of failure."""
    return _GROUPS.all(await database.fetch_all(SQL.summarise_dead_letters, ids, limit))


async def add_histories(database: Database, groups: Sequence[FailureGroup], now: datetime) -> list[FailureGroupDetails]:
    """Return groups of failures with manifests, frequency and last resolution."""
    fingerprints, since = [group.fingerprint for group in groups], now - timedelta(hours=TREND_HOURS)
    by_manifest, by_hour, resolved = await asyncio.gather(
        database.fetch_all(SQL.list_manifests_of_failures, fingerprints),
        database.fetch_all(SQL.count_failures_by_hour, fingerprints, since),
        database.fetch_all(SQL.list_last_resolutions, fingerprints),
    )
    manifests = {row["fingerprint"]: row["manifests"] for row in by_manifest}
    counts = {fingerprint: [0] * TREND_HOURS for fingerprint in fingerprints}
    for row in by_hour:
        counts[row["fingerprint"]][min(row["hour"], TREND_HOURS - 1)] += row["count"]
    resolutions = {each.fingerprint: each for each in _RESOLUTIONS.all(resolved)}
    return [
        FailureGroupDetails(
            group.fingerprint,
            group.dead_letter_count,
            group.manifest_count,
            group.external_id,
            group.job_count,
            group.name,
            group.first_at,
            group.last_at,
            group.reason,
            manifests.get(group.fingerprint, []),
            counts[group.fingerprint],
            resolutions.get(group.fingerprint),
        )
        for group in groups
    ]
