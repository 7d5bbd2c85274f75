"""What limits a throughput: the processors, one process, or what the sessions of the database wait for."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

FULL_SHARE = 0.8
"""From this share of the time on, a processor or a process counts as fully used."""
MIN_WAITING_SESSIONS = 0.5
"""Average number of sessions that wait for the same, from which on it counts as a bottleneck."""

_NAMES = {
    "IO:WalSync": "commits to disk", "IO:WALSync": "commits to disk", "LWLock:WALWrite": "commits to disk",
    "LWLock:WALInsert": "writing WAL", "Lock:object": "the lock of NOTIFY", "Lock:advisory": "claims under a limit",
    "Lock:tuple": "row locks", "Lock:transactionid": "row locks", "LWLock:LockManager": "the lock manager",
}  # fmt: skip


@dataclass(frozen=True)
class Use:
    """CPU time of a case: of all processes that use the database, and of the database."""

    seconds: float
    process_seconds: float
    server_seconds: float
    cores: int = len(os.sched_getaffinity(0))


def find_bottleneck(use: Use, busiest_process_seconds: float, waits: Counter[str], sample_count: int) -> str:
    """Return the bottleneck in a few words."""
    available = use.seconds * use.cores
    ours, servers = use.process_seconds / available, use.server_seconds / available
    if ours + servers >= FULL_SHARE:
        return f"CPU: processes {ours:.0%}, database {servers:.0%}"
    if busiest_process_seconds >= FULL_SHARE * use.seconds:
        return "CPU of the process: one core"
    named: Counter[str] = Counter()
    for event, count in waits.items():
        if not event.startswith("Client:"):
            named[_NAMES.get(event, event)] += count
    if named:
        ((event, count),) = named.most_common(1)
        if count / max(1, sample_count) >= MIN_WAITING_SESSIONS:
            return event
    return (
        "slots: the jobs wait"
        if ours + servers < FULL_SHARE / 2
        else f"CPU: processes {ours:.0%}, database {servers:.0%}"
    )
