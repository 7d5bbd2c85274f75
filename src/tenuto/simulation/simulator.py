"""Discrete-event simulation of schedules: due instants, overlapping runs and missed runs, without a database.

The decisions are those of the scheduler (`model.work.occurrences`). Only run durations are estimates, from history or
given. A run that is cancelled for the next one counts as stopped immediately.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, count
from operator import attrgetter

from tenuto.errors import Invalid
from tenuto.model.definitions.schedules import MisfirePolicy, OverlapPolicy, ScheduleDefinition
from tenuto.model.definitions.steps import APPROVAL, SCHEDULE
from tenuto.model.triggers.zones import MICROSECOND
from tenuto.model.work.occurrences import ALREADY_QUEUED, Decision, OverlapState, decide_due_occurrences, decide_overlap
from tenuto.simulation.clock_changes import ClockChangeEffect, clock_change_effects

MAX_RUNS = 100_000

TimeSpan = tuple[datetime, datetime]
_RUN_ORDER = attrgetter("due_at", "schedule")


@dataclass(frozen=True, slots=True)
class SimulatedSchedule:
    """A schedule to simulate."""

    definition: ScheduleDefinition
    seed: str
    """Selects the jitter: the id of the schedule."""
    run_seconds: float
    """The duration of a run."""
    duration_source: str = "given"
    """``history``, ``given`` or ``assumed``."""
    running_since: datetime | None = None
    """The start of the run that is active now."""

    @property
    def name(self) -> str:
        return self.definition.name

    def active_until(self, start: datetime) -> datetime | None:
        """Return when the run that is active at ``start`` ends; None if there is none or its duration has passed."""
        if self.running_since is None or self.running_since >= start:
            return None
        ends_at = self.running_since + timedelta(seconds=self.run_seconds)
        return ends_at if ends_at > start else None

    def slots_per_queue(self) -> dict[str, int]:
        """Return the most slots of each queue that a run needs at a time. A step that waits needs none."""
        most: dict[str, int] = {}
        for group in self.definition.plan.groups:
            needed: dict[str, int] = {}
            for step in group:
                if step.kind not in (SCHEDULE, APPROVAL):
                    needed[step.queue or "default"] = needed.get(step.queue or "default", 0) + 1
            most = {queue: max(most.get(queue, 0), needed.get(queue, 0)) for queue in most.keys() | needed.keys()}
        return most


@dataclass(slots=True)
class SimulatedRun:
    """The result for one due instant."""

    schedule: str
    due_at: datetime
    decision: Decision
    """``queued`` only if it has not started by the end."""
    reason: str | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    cut: bool = False
    """Cancelled because the next run was due."""
    until: datetime | None = None
    """Set if it stands for every due instant up to this one."""


@dataclass(frozen=True, slots=True)
class Clash:
    """A conflict between runs."""

    kind: str
    """``overlap``: a run is due while the previous one is active. ``slots``: a queue has too few slots."""
    at: datetime
    until: datetime | None
    schedules: tuple[str, ...]
    message: str
    queue: str | None = None


@dataclass(slots=True)
class ScheduleTotal:
    """The totals of one schedule."""

    schedule: str
    seconds: float
    duration_is: str
    due: int = 0
    fired: int = 0
    waited: int = 0
    skipped: int = 0
    coalesced: int = 0
    missed: int = 0
    cut: int = 0
    busy_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a simulation."""

    start: datetime
    end: datetime
    runs_of: Mapping[str, Sequence[SimulatedRun]]
    """The runs of each schedule that has some, in the order of their due instants."""
    clashes: list[Clash]
    clock_changes: list[ClockChangeEffect]
    totals: list[ScheduleTotal]
    notes: list[str] = field(default_factory=list)

    @property
    def runs(self) -> list[SimulatedRun]:
        """All runs in the order of their due instants."""
        return sorted((run for runs in self.runs_of.values() for run in runs), key=_RUN_ORDER)


def simulate(
    schedules: Sequence[SimulatedSchedule],
    start: datetime,
    end: datetime,
    *,
    queue_slots: Mapping[str, int] | None = None,
    outages: Sequence[TimeSpan] = (),
    max_runs: int = MAX_RUNS,
) -> Simulation:
    """Simulate schedules from ``start`` up to, not including, ``end``.

    ``queue_slots`` is the number of tasks of each queue that can run at a time; other queues are not checked. During an
    outage no scheduler runs: due instants are decided at its end, by the misfire policy. If the outage ends after
    ``end``, they are only counted, in a note.
    """
    if end <= start:
        raise Invalid(
            f"the end {end.isoformat()} is not after the start {start.isoformat()}",
            code="simulation.range.empty",
            field="to",
        )
    simulator = _Simulator(start, end, outages, max_runs)
    for schedule in schedules:
        simulator.add(schedule)
    simulator.run()
    separate, by_events = simulator.separate_runs, simulator.initial_runs + sorted(simulator.runs, key=_RUN_ORDER)
    runs_of: dict[str, Sequence[SimulatedRun]] = {**separate, **_group_by_schedule(simulator.runs)}
    clashes = [
        *_find_overlaps(by_events),
        *_find_slot_shortages(schedules, separate, by_events, queue_slots or {}, (start, end)),
    ]
    return Simulation(
        start,
        end,
        runs_of,
        sorted(clashes, key=lambda clash: (clash.at, clash.kind, clash.schedules)),
        sorted(
            (
                effect
                for schedule in schedules
                for effect in clock_change_effects(schedule.name, schedule.definition.trigger, start, end)
            ),
            key=lambda effect: (effect.at, effect.schedule),
        ),
        [
            _compute_total(schedule, runs_of.get(schedule.name, ()), are_separate=schedule.name in separate)
            for schedule in sorted(schedules, key=attrgetter("name"))
        ],
        _undecided_notes(simulator.undecided),
    )


def _group_by_schedule(runs: Sequence[SimulatedRun]) -> dict[str, Sequence[SimulatedRun]]:
    found: dict[str, list[SimulatedRun]] = {}
    for run in sorted(runs, key=_RUN_ORDER):
        found.setdefault(run.schedule, []).append(run)
    return dict(found)


class _ScheduleState:
    """A schedule and its runs at the current instant."""

    def __init__(self, schedule: SimulatedSchedule) -> None:
        self.schedule = schedule
        self.active: list[SimulatedRun] = []
        self.queued: deque[SimulatedRun] = deque()


class _Simulator:
    """Processes events in order. At one instant ends come first, then due instants, then queued runs, as in a cycle of
    the scheduler."""

    def __init__(self, start: datetime, end: datetime, outages: Sequence[TimeSpan], max_runs: int) -> None:
        self._start = start
        self._end = end
        self._outages = sorted(outages)
        self._max_runs = max_runs
        self._events: list[tuple[datetime, int, int, Callable[[datetime], None]]] = []
        self._order = count()
        self.runs: list[SimulatedRun] = []
        """The runs that events have decided."""
        self.separate_runs: dict[str, list[SimulatedRun]] = {}
        """The other runs by schedule: each fires when it is due, and ends before the next one is due."""
        self._separate_count = 0
        self.initial_runs: list[SimulatedRun] = []
        """The runs that are active at the start."""
        self.undecided: dict[str, int] = {}
        """The number of due instants of a schedule that are not decided before the end."""

    def add(self, schedule: SimulatedSchedule) -> None:
        ends_at = schedule.active_until(self._start)
        if ends_at is None and not self._outages and self._add_separate_runs(schedule):
            return
        state = _ScheduleState(schedule)
        if schedule.running_since is not None and ends_at is not None:
            run = SimulatedRun(
                schedule.name, schedule.running_since, Decision.FIRED, None, schedule.running_since, ends_at
            )
            self.initial_runs.append(run)
            self._activate(state, run, ends_at)
        self._schedule_decision(state, schedule.definition.trigger.next_after(self._start - MICROSECOND, schedule.seed))

    def _add_separate_runs(self, schedule: SimulatedSchedule) -> bool:
        """Add the runs of a schedule each of which ends before the next is due; return False if two of them meet.

        Schedules do not affect each other, so these need no events. That is a measured optimisation: the timeline of
        500 schedules (benchmark `dashboard`). `test_separate_runs_equal_runs_by_events` compares both ways.
        """
        duration, name, fired = timedelta(seconds=schedule.run_seconds), schedule.name, Decision.FIRED
        found: list[SimulatedRun] = []
        free_from = self._start
        allowed_count = self._max_runs - self._run_count
        trigger = schedule.definition.trigger
        for due_at in trigger.runs_between(self._start - MICROSECOND, self._end - MICROSECOND, schedule.seed):
            if due_at < free_from:
                return False
            free_from = due_at + duration
            if len(found) >= allowed_count:
                self._check_run_count(self._max_runs)
            found.append(SimulatedRun(name, due_at, fired, None, due_at, free_from))
        if found:
            self.separate_runs[name] = found
            self._separate_count += len(found)
        return True

    @property
    def _run_count(self) -> int:
        return len(self.runs) + self._separate_count

    def run(self) -> None:
        while self._events:
            at, _, _, handle = heapq.heappop(self._events)
            if at >= self._end:
                return
            handle(at)

    def _push_event(self, instant: datetime, rank: int, handle: Callable[[datetime], None]) -> None:
        heapq.heappush(self._events, (instant, rank, next(self._order), handle))

    def _scheduler_up_from(self, instant: datetime) -> datetime:
        """Return the instant, or the end of the outage that contains it."""
        for begins, ends in self._outages:
            if begins <= instant < ends:
                instant = ends
        return instant

    def _schedule_decision(self, state: _ScheduleState, first: datetime | None) -> None:
        if first is None or first >= self._end:
            return
        decided_at = self._scheduler_up_from(first)
        if decided_at < self._end:
            self._push_event(decided_at, 1, lambda now: self._decide(state, first, now))
        else:
            self._count_undecided(state.schedule, first)

    def _count_undecided(self, schedule: SimulatedSchedule, first: datetime) -> None:
        number, instant = 0, schedule.definition.trigger.next_after(first, schedule.seed)
        while instant is not None and instant < self._end:
            self._check_run_count(number)
            number, instant = number + 1, schedule.definition.trigger.next_after(instant, schedule.seed)
        self.undecided[schedule.name] = number + 1

    def _decide(self, state: _ScheduleState, first: datetime, now: datetime) -> None:
        definition, seed = state.schedule.definition, state.schedule.seed
        found = decide_due_occurrences(definition.trigger, first, now, definition.misfire, seed)
        to_run = sum(each.decision is Decision.FIRED for each in found.decided)
        catching_up = definition.misfire.policy is MisfirePolicy.ALL and to_run > 1
        for each in found.decided:
            run = self._record(
                SimulatedRun(state.schedule.name, each.due_at, each.decision, each.reason, until=each.until)
            )
            if each.decision is Decision.FIRED:
                self._apply_overlap_policy(state, run, now, catching_up=catching_up)
        self._schedule_decision(state, found.next_run_at)

    def _apply_overlap_policy(
        self, state: _ScheduleState, run: SimulatedRun, now: datetime, *, catching_up: bool
    ) -> None:
        overlap = state.schedule.definition.overlap
        if overlap is OverlapPolicy.CANCEL_PREVIOUS:
            for earlier in [active for active in state.active if active.starts_at != now]:
                earlier.ends_at, earlier.cut = now, True
                state.active.remove(earlier)
        if catching_up and overlap is not OverlapPolicy.ALLOW and (state.active or state.queued):
            run.decision, run.reason = Decision.QUEUED, "missed runs are made up for one after the other"
        else:
            run.decision, run.reason = decide_overlap(overlap, OverlapState(bool(state.active), bool(state.queued)))
        if run.decision is Decision.FIRED:
            self._start_run(state, run, now)
        elif run.decision is Decision.QUEUED:
            state.queued.append(run)

    def _start_run(self, state: _ScheduleState, run: SimulatedRun, now: datetime) -> None:
        run.decision, run.starts_at = Decision.FIRED, now
        run.ends_at = now + timedelta(seconds=state.schedule.run_seconds)
        self._activate(state, run, run.ends_at)

    def _activate(self, state: _ScheduleState, run: SimulatedRun, ends_at: datetime) -> None:
        state.active.append(run)
        self._push_event(ends_at, 0, lambda at: self._finish(state, run, at))

    def _finish(self, state: _ScheduleState, run: SimulatedRun, now: datetime) -> None:
        if not run.cut:
            state.active.remove(run)
        if state.queued:
            self._push_event(self._scheduler_up_from(now), 2, lambda at: self._start_queued(state, at))

    def _start_queued(self, state: _ScheduleState, now: datetime) -> None:
        if state.queued and not state.active:
            self._start_run(state, state.queued.popleft(), now)

    def _record(self, run: SimulatedRun) -> SimulatedRun:
        self._check_run_count(self._run_count)
        self.runs.append(run)
        return run

    def _check_run_count(self, number: int) -> None:
        if number >= self._max_runs:
            raise Invalid(
                f"the simulated period has more than {self._max_runs:,} runs",
                code="simulation.too_many_runs",
                field="to",
                remedy="choose a shorter period, or name the schedules to simulate",
            )


def _undecided_notes(undecided: Mapping[str, int]) -> list[str]:
    if not undecided:
        return []
    number, names = sum(undecided.values()), sorted(undecided)
    listed = f"{', '.join(names[:10])}{' …' if len(names) > 10 else ''}"
    count = "1 due instant is" if number == 1 else f"{number:,} due instants are"
    return [f"{count} decided after the end, when the outage is over: {listed}"]


# --- clashes and totals ---------------------------------------------------------------------------------------------


def _find_overlaps(runs: Sequence[SimulatedRun]) -> Iterator[Clash]:
    """Yield the runs that were due while the previous run of their schedule was active."""
    for run in runs:
        if run.starts_at is not None and run.reason is not None:
            message = f"{run.schedule!r} starts later than it is due: {run.reason}"
            yield Clash("overlap", run.due_at, run.starts_at, (run.schedule,), message)
        elif run.decision in (Decision.SKIPPED, Decision.QUEUED) or _is_coalesced_with_queued(run):
            message = f"{run.schedule!r} is {run.decision}: {run.reason}"
            yield Clash("overlap", run.due_at, None, (run.schedule,), message)
        if run.cut and run.ends_at is not None:
            message = f"{run.schedule!r} is cancelled before its end: the next run is due"
            yield Clash("overlap", run.ends_at, None, (run.schedule,), message)


def _is_coalesced_with_queued(run: SimulatedRun) -> bool:
    return run.decision is Decision.COALESCED and run.reason == ALREADY_QUEUED


def _find_slot_shortages(
    schedules: Sequence[SimulatedSchedule],
    separate_runs: Mapping[str, Sequence[SimulatedRun]],
    other_runs: Sequence[SimulatedRun],
    queue_slots: Mapping[str, int],
    period: TimeSpan,
) -> Iterator[Clash]:
    """Yield the times at which the runs need more slots of a queue than it has."""
    needs = {schedule.name: schedule.slots_per_queue() for schedule in schedules}
    for queue, slots in sorted(queue_slots.items()):
        needed_by = {name: each[queue] for name, each in needs.items() if each.get(queue)}
        others = [run for run in other_runs if run.schedule in needed_by]
        if not others and sum(needed_by.values()) <= slots:
            continue  # one run of each schedule at a time: never more
        changes: list[tuple[datetime, int, str]] = []
        for run in chain(others, *(separate_runs.get(name, ()) for name in needed_by)):
            if run.starts_at is not None and run.ends_at is not None and run.ends_at > run.starts_at:
                needed, name = needed_by[run.schedule], run.schedule
                changes.append((max(run.starts_at, period[0]), needed, name))
                changes.append((min(run.ends_at, period[1]), -needed, name))
        yield from _find_shortages(queue, slots, sorted(changes))


def _find_shortages(queue: str, slots: int, changes: Sequence[tuple[datetime, int, str]]) -> Iterator[Clash]:
    used: dict[str, int] = {}
    """Slots by schedule; only of those that use some."""
    needed = 0
    since: datetime | None = None
    peak, involved = 0, set[str]()
    for at, change, schedule in changes:
        needed += change
        if count := used.get(schedule, 0) + change:
            used[schedule] = count
        else:
            del used[schedule]
        if needed > slots:
            if since is None:
                since = at
                involved.update(used)
            peak = max(peak, needed)
            if change > 0:
                involved.add(schedule)
        elif since is not None:
            message = f"queue {queue} has {slots:,} slots, and up to {peak:,} are needed"
            yield Clash("slots", since, at, tuple(sorted(involved)), message, queue)
            since, peak, involved = None, 0, set()


def _compute_total(schedule: SimulatedSchedule, runs: Sequence[SimulatedRun], *, are_separate: bool) -> ScheduleTotal:
    total = ScheduleTotal(schedule.name, schedule.run_seconds, schedule.duration_source, due=len(runs))
    if are_separate:
        total.fired, total.busy_seconds = len(runs), len(runs) * timedelta(seconds=schedule.run_seconds).total_seconds()
        return total
    for run in runs:
        if run.starts_at is not None and run.ends_at is not None:
            total.fired += 1
            total.busy_seconds += (run.ends_at - run.starts_at).total_seconds()
        total.waited += run.decision is Decision.QUEUED or (run.starts_at is not None and run.reason is not None)
        total.skipped += run.decision is Decision.SKIPPED
        total.coalesced += run.decision is Decision.COALESCED
        total.missed += run.decision is Decision.MISSED
        total.cut += run.cut
    return total
