"""What the doctor cannot learn from one statement: a ledger held against its trigger, definitions and requests that
this version cannot read, secrets sought in the open.

It only looks, at the newest part of what there is. A secret that is found is named; its value is never told.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from tenuto import secret_encryption
from tenuto.diagnostics.checks import NAMED, REPORT, Finding, Verdict
from tenuto.errors import TenutoError
from tenuto.jobs.redaction import SHORTEST, Mask
from tenuto.model.manifests import manifest_from_fields
from tenuto.model.schedules import Overlap, misfire_from_json, plan_from_json
from tenuto.model.triggers import Trigger, trigger_from_json
from tenuto.postgres.database import Database
from tenuto.scheduling.firing import requested
from tenuto.service.quarantine import UNREADABLE
from tenuto.settings import Settings
from tenuto.store.access import secrets
from tenuto.store.reports import doctor as store
from tenuto.store.reports.doctor import Ledger

_SCHEDULES, _ROWS, _SECRETS = 500, 50, 200
_AGAIN = "ask again later; if it stays so, run ANALYZE on the schema tenuto"


async def ledger(database: Database) -> Finding:
    """Every due instant since a schedule was last changed stands in the ledger."""
    found = await store.ledgers(database, _SCHEDULES, _ROWS)
    holds = "every due instant stands in the ledger"
    if found is None:
        return _too_slow("ledger_has_gaps", holds)
    gaps = [gap for each in found for gap in _gaps(each)]
    if not gaps:
        return Finding("ledger_has_gaps", holds, Verdict.OK, [f"{len(found)} schedules looked at"] if found else [])
    return Finding(
        "ledger_has_gaps",
        "due instants are missing from the ledger",
        Verdict.PROBLEM,
        _some(gaps),
        "A run that was due was neither started nor left out for a reason, or a row of the ledger was deleted.",
        f"run it with `tenuto schedule run NAME` if it is still wanted; {REPORT}",
    )


def _gaps(ledger: Ledger) -> Iterator[str]:
    """Where the trigger names an instant of which the ledger knows nothing."""
    try:
        trigger = trigger_from_json(ledger.trigger)
        rows = [*ledger.told[1:], (ledger.next_run_at, None)]
        for (due_at, until), (following, _) in zip(ledger.told, rows, strict=True):
            wanted = trigger.next_after(until or due_at, str(ledger.schedule_id))
            if wanted is not None and following is not None and wanted < following:
                yield f"{ledger.name}: nothing is told of {wanted:%Y-%m-%d %H:%M:%S} UTC"
    except UNREADABLE:
        return  # nobody can read it; see below


async def next_runs(database: Database) -> Finding:
    """Every enabled schedule and manifest can be read, and its next run is known if it has one; and every request that
    waits for its turn can be read."""
    name, holds = "next_run_lost", "schedules, manifests and requests that wait can be read, and no next run is lost"
    found, queued = await store.enabled(database, _SCHEDULES), await store.ask(database, "queued_requests", _SCHEDULES)
    if found is None or queued is None:
        return _too_slow(name, holds)
    now = database.clock.now()
    unread, lost = await asyncio.to_thread(_without_next_run, found, now)
    unread += await asyncio.to_thread(_requests_unread, queued)
    if not unread and not lost:
        return Finding(name, holds, Verdict.OK)
    return Finding(
        name,
        "schedules, manifests or requests that wait cannot be read, or next runs are lost",
        Verdict.PROBLEM if lost else Verdict.WARNING,
        _some(lost + unread),
        "They do not run: services of this version leave alone what they cannot read, and nobody looks for a next run"
        " that counts as known. While a request waits, its schedule does not run either.",
        "what a newer version wrote needs services of that version; what was changed by hand must be put right by hand;"
        " a request whose turn has come is given up after some minutes, and may then be made again;"
        " a next run that was lost comes back with `tenuto schedule disable NAME` and `enable NAME`, or the same of"
        " `tenuto manifest`",
    )


def _without_next_run(found: dict[str, list[dict[str, Any]]], now: datetime) -> tuple[list[str], list[str]]:
    """In words: those that cannot be read, and those whose next run is not known though there is one."""
    unread, lost = list[str](), list[str]()
    for what, rows in found.items():
        for row in rows:
            try:
                following = _trigger(what, row).next_after(now, str(row["id"]))
            except UNREADABLE as error:
                unread.append(f"{what} {row['name']} cannot be read by this version: {error}")
                continue
            if following is not None and row["planned"] and row["next_run_at"] is None:
                lost.append(
                    f"{what} {row['name']} would run at {following:%Y-%m-%d %H:%M:%S} UTC, and nobody waits for it"
                )
    return unread, lost


def _requests_unread(queued: list[dict[str, Any]]) -> list[str]:
    """In words: the runs by hand that nobody of this version can start when their turn comes."""
    unread = list[str]()
    for row in queued:
        try:
            requested(json.loads(row["request"]))
        except UNREADABLE as error:
            at = f"{row['due_at']:%Y-%m-%d %H:%M:%S} UTC"
            unread.append(f"a run of {row['name']} queued at {at} cannot be read by this version: {error}")
    return unread


def _trigger(what: str, row: dict[str, Any]) -> Trigger:
    """When it runs, after all else that whoever runs it has to read."""
    if what == "manifest":
        return manifest_from_fields(json.loads(row["definition"])).trigger
    plan_from_json(row["plan"])
    misfire_from_json(row["misfire"])
    Overlap(row["overlap"])
    return trigger_from_json(row["trigger"])


async def secrets_in_the_open(database: Database, settings: Settings, most: int) -> Finding:
    """The value of no secret stands where others may read it."""
    name, holds = "secret_in_the_open", "no secret stands in the open"
    stored = await secrets.list_secrets(database, "", _SECRETS)
    if not stored:
        return Finding(name, holds, Verdict.OK, ["there are no secrets"])
    try:
        values = await _values(database, settings, [row["name"] for row in stored])
    except TenutoError as error:
        unknown = "it is not known whether a secret stands in the open"
        return Finding(name, unknown, Verdict.NOTE, [error.message], None, error.remedy)
    search = _Search(values)
    whole = await store.read_texts(database, most, search.look)
    if not search.found:
        if not whole:
            return _too_slow(name, holds)
        return Finding(name, holds, Verdict.OK, [f"{len(values)} sought in {search.texts} texts"])
    return Finding(
        name,
        "secrets stand in the open",
        Verdict.PROBLEM,
        _some(search.found),
        "Whoever may read these rows, or a backup, knows the secret.",
        "change the secret where it is used, then `tenuto secret set NAME`; see which job wrote it and let it use"
        " app.secrets.reveal, which masks what it shows",
    )


async def _values(database: Database, settings: Settings, names: list[str]) -> dict[str, str]:
    keys = await asyncio.to_thread(secret_encryption.find_or_refuse, settings)
    rows = [row for name in names if (row := await secrets.get(database, name)) is not None]
    return {row.name: value for row in rows if len(value := keys.open(row)) >= SHORTEST}


class _Search:
    """Secrets, sought in one text after the other."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self._everything = Mask()
        for value in values.values():
            self._everything.add(value)
        self.texts = 0
        self.found: list[str] = []

    async def look(self, texts: Sequence[tuple[str, str]]) -> None:
        await asyncio.to_thread(self._look, texts)

    def _look(self, texts: Sequence[tuple[str, str]]) -> None:
        self.texts += len(texts)
        for place, text in texts:
            if len(self.found) > NAMED or self._everything.text(text) == text:
                continue
            for name, value in self._values.items():  # rare: which one it is may take its time
                one = Mask()
                one.add(value)
                if one.text(text) != text:
                    self.found.append(f"the value of {name!r} stands in {place}")


def _some(details: list[str]) -> list[str]:
    return details[:NAMED] + (["… and more"] if len(details) > NAMED else [])


def _too_slow(name: str, holds: str) -> Finding:
    unknown = f"it is not known whether {holds}"
    return Finding(name, unknown, Verdict.WARNING, ["the question took too long"], "The database is very busy.", _AGAIN)
