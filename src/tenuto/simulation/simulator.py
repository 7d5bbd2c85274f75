"""What would fire when: the rules for due instants, meeting runs and missed ones, played through without a database.

Pure. The decisions are those of the scheduler itself (`model.occurrences`); only the time runs take is a guess, that of
the past or one that was given. A run that is cancelled for the next one counts as stopped at once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count

from tenuto.errors import Invalid
from tenuto.model.occurrences import Decision, Meeting, due, when_meeting
from tenuto.model.schedules import Definition, Late, Overlap
from tenuto.model.steps import SCHEDULE
from tenuto.model.triggers.zones import MOMENT
from tenuto.simulation.dst_report import Effect, effects

MOST_RUNS = 100_000

Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Subject:
    """A schedule to play through."""

    definition: Definition
    seed: str
    """What places it within its jitter: its id."""
    seconds: float
    """How long a run takes."""
    duration_is: str = "given"
    """Where that comes from: ``history``, ``given`` or ``assumed``."""
    running_since: datetime | None = None
    """When the run that is active now began."""

    @property
    def name(self) -> str:
        return self.definition.name

    def runs_on_until(self, start: datetime) -> datetime | None:
        """When the run that is active at the beginning ends; None if there is none, going by how long runs take."""
        if self.running_since is None or self.running_since >= start:
            return None
        ends_at = self.running_since + timedelta(seconds=self.seconds)
        return ends_at if ends_at > start else None

    def needs(self) -> dict[str, int]:
        """How many slots of each queue a run takes at most at a time. A step that runs a schedule takes none."""
        most: dict[str, int] = {}
        for group in self.definition.plan.groups:
            here: dict[str, int] = {}
            for step in group:
                if step.kind != SCHEDULE:
                    here[step.queue or "default"] = here.get(step.queue or "default", 0) + 1
            most = {queue: max(most.get(queue, 0), here.get(queue, 0)) for queue in most.keys() | here.keys()}
        return most


@dataclass(slots=True)
class Run:
    """What became of one due instant."""

    schedule: str
    due_at: datetime
    decision: Decision
    """``queued`` only if its turn has not come by the end."""
    reason: str | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    cut: bool = False
    """Cancelled, because the next one was due."""
    until: datetime | None = None
    """It stands for every due instant up to here."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Something that gets in the way of something else."""

    kind: str
    """``overlap``: a run meets the previous one. ``slots``: more at once than a queue has room for."""
    at: datetime
    until: datetime | None
    schedules: tuple[str, ...]
    words: str
    queue: str | None = None


@dataclass(slots=True)
class Total:
    """One schedule, summed up."""

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
    """All that would happen between two instants."""

    start: datetime
    end: datetime
    runs: list[Run]
    clashes: list[Clash]
    clock_changes: list[Effect]
    totals: list[Total]
    notes: list[str] = field(default_factory=list)


def simulate(
    subjects: Sequence[Subject],
    start: datetime,
    end: datetime,
    *,
    room: Mapping[str, int] | None = None,
    outages: Sequence[Span] = (),
    most: int = MOST_RUNS,
) -> Simulation:
    """Play schedules through from ``start`` up to, not including, ``end``.

    ``room`` is how many tasks of each queue can run at a time; a queue that is not named is not judged. During an
    outage no scheduler is there: what falls due is decided at its end, by the misfire rule. What falls due in one that
    lasts longer than up to ``end`` is only counted, in a note.
    """
    if end <= start:
        raise Invalid("is not after the beginning", field="to")
    play = _Play(start, end, outages, most)
    for subject in subjects:
        play.enter(subject)
    play.through()
    runs = sorted(play.runs, key=lambda run: (run.due_at, run.schedule))
    with_earlier = [*play.earlier, *runs]
    clashes = [*_meetings(with_earlier), *_crowds(subjects, with_earlier, room or {}, (start, end))]
    return Simulation(
        start,
        end,
        runs,
        sorted(clashes, key=lambda clash: (clash.at, clash.kind, clash.schedules)),
        sorted(
            (each for subject in subjects for each in effects(subject.name, subject.definition.trigger, start, end)),
            key=lambda effect: (effect.at, effect.schedule),
        ),
        [_total(subject, runs_of) for subject, runs_of in _by_subject(subjects, runs)],
        _undecided_in_words(play.undecided),
    )


class _Stage:
    """One schedule while it is played."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.active: list[Run] = []
        self.waiting: deque[Run] = deque()


class _Play:
    """The events in their order. At one instant first what ends, then what is due, then whose turn has come: as in a
    round of the scheduler."""

    def __init__(self, start: datetime, end: datetime, outages: Sequence[Span], most: int) -> None:
        self._start = start
        self._end = end
        self._outages = sorted(outages)
        self._most = most
        self._events: list[tuple[datetime, int, int, Callable[[datetime], None]]] = []
        self._order = count()
        self.runs: list[Run] = []
        self.earlier: list[Run] = []
        """What was active at the beginning."""
        self.undecided: dict[str, int] = {}
        """How many due instants of a schedule nobody decides on before the end."""

    def enter(self, subject: Subject) -> None:
        stage = _Stage(subject)
        ends_at = subject.runs_on_until(self._start)
        if subject.running_since is not None and ends_at is not None:
            run = Run(subject.name, subject.running_since, Decision.FIRED, None, subject.running_since, ends_at)
            self.earlier.append(run)
            self._go_on(stage, run, ends_at)
        self._fall_due(stage, subject.definition.trigger.next_after(self._start - MOMENT, subject.seed))

    def through(self) -> None:
        while self._events:
            at, _, _, happen = heapq.heappop(self._events)
            if at >= self._end:
                return
            happen(at)

    def _at(self, instant: datetime, rank: int, happen: Callable[[datetime], None]) -> None:
        heapq.heappush(self._events, (instant, rank, next(self._order), happen))

    def _someone_is_there(self, instant: datetime) -> datetime:
        """The instant itself, or the end of the outage it falls into."""
        for begins, ends in self._outages:
            if begins <= instant < ends:
                instant = ends
        return instant

    def _fall_due(self, stage: _Stage, first: datetime | None) -> None:
        if first is None or first >= self._end:
            return
        decided_at = self._someone_is_there(first)
        if decided_at < self._end:
            self._at(decided_at, 1, lambda now: self._decide(stage, first, now))
        else:
            self._leave_undecided(stage.subject, first)

    def _leave_undecided(self, subject: Subject, first: datetime) -> None:
        number, instant = 0, subject.definition.trigger.next_after(first, subject.seed)
        while instant is not None and instant < self._end:
            self._refuse_more_than_can_be_told(number)
            number, instant = number + 1, subject.definition.trigger.next_after(instant, subject.seed)
        self.undecided[subject.name] = number + 1

    def _decide(self, stage: _Stage, first: datetime, now: datetime) -> None:
        definition, seed = stage.subject.definition, stage.subject.seed
        found = due(definition.trigger, first, now, definition.misfire, seed)
        to_run = sum(each.decision is Decision.FIRED for each in found.decided)
        catching_up = definition.misfire.policy is Late.ALL and to_run > 1
        for each in found.decided:
            run = self._record(Run(stage.subject.name, each.due_at, each.decision, each.reason, until=each.until))
            if each.decision is Decision.FIRED:
                self._meet(stage, run, now, catching_up=catching_up)
        self._fall_due(stage, found.next_run)

    def _meet(self, stage: _Stage, run: Run, now: datetime, *, catching_up: bool) -> None:
        overlap = stage.subject.definition.overlap
        if overlap is Overlap.CANCEL_PREVIOUS:
            for earlier in [active for active in stage.active if active.starts_at != now]:
                earlier.ends_at, earlier.cut = now, True
                stage.active.remove(earlier)
        if catching_up and overlap is not Overlap.ALLOW and (stage.active or stage.waiting):
            run.decision, run.reason = Decision.QUEUED, "missed runs are made up for one after the other"
        else:
            run.decision, run.reason = when_meeting(overlap, Meeting(bool(stage.active), bool(stage.waiting)))
        if run.decision is Decision.FIRED:
            self._begin(stage, run, now)
        elif run.decision is Decision.QUEUED:
            stage.waiting.append(run)

    def _begin(self, stage: _Stage, run: Run, now: datetime) -> None:
        run.decision, run.starts_at = Decision.FIRED, now
        run.ends_at = now + timedelta(seconds=stage.subject.seconds)
        self._go_on(stage, run, run.ends_at)

    def _go_on(self, stage: _Stage, run: Run, ends_at: datetime) -> None:
        stage.active.append(run)
        self._at(ends_at, 0, lambda at: self._finish(stage, run, at))

    def _finish(self, stage: _Stage, run: Run, now: datetime) -> None:
        if not run.cut:
            stage.active.remove(run)
        if stage.waiting:
            self._at(self._someone_is_there(now), 2, lambda at: self._take_turn(stage, at))

    def _take_turn(self, stage: _Stage, now: datetime) -> None:
        if stage.waiting and not stage.active:
            self._begin(stage, stage.waiting.popleft(), now)

    def _record(self, run: Run) -> Run:
        self._refuse_more_than_can_be_told(len(self.runs))
        self.runs.append(run)
        return run

    def _refuse_more_than_can_be_told(self, number: int) -> None:
        if number >= self._most:
            raise Invalid(
                f"more than {self._most:,} runs fall into that time",
                field="to",
                remedy="choose a shorter time, or name the schedules to look at",
            )


def _undecided_in_words(undecided: Mapping[str, int]) -> list[str]:
    if not undecided:
        return []
    number, names = sum(undecided.values()), sorted(undecided)
    which = f"{', '.join(names[:10])}{' …' if len(names) > 10 else ''}"
    are = "1 due instant is" if number == 1 else f"{number:,} due instants are"
    return [f"{are} decided after the end, when the outage is over: {which}"]


# --- what gets in the way -------------------------------------------------------------------------------------------


def _meetings(runs: Sequence[Run]) -> Iterator[Clash]:
    """Runs that met the previous one of their schedule."""
    for run in runs:
        if run.starts_at is not None and run.reason is not None:
            words = f"{run.schedule!r} begins later than it is due: {run.reason}"
            yield Clash("overlap", run.due_at, run.starts_at, (run.schedule,), words)
        elif run.decision in (Decision.SKIPPED, Decision.QUEUED) or _met_a_waiting_one(run):
            words = f"{run.schedule!r} is {run.decision}: {run.reason}"
            yield Clash("overlap", run.due_at, None, (run.schedule,), words)
        if run.cut and run.ends_at is not None:
            words = f"{run.schedule!r} is cancelled before its end: the next run is due"
            yield Clash("overlap", run.ends_at, None, (run.schedule,), words)


def _met_a_waiting_one(run: Run) -> bool:
    return run.decision is Decision.COALESCED and run.reason == "a run is waiting already"


def _crowds(subjects: Sequence[Subject], runs: Sequence[Run], room: Mapping[str, int], within: Span) -> Iterator[Clash]:
    """The times at which the runs need more slots of a queue than there are."""
    needs = {subject.name: subject.needs() for subject in subjects}
    for queue, most in sorted(room.items()):
        steps: list[tuple[datetime, int, str]] = []
        for run in runs:
            wanted = needs[run.schedule].get(queue, 0)
            if wanted and run.starts_at is not None and run.ends_at is not None and run.ends_at > run.starts_at:
                begins, ends = max(run.starts_at, within[0]), min(run.ends_at, within[1])
                steps += [(begins, wanted, run.schedule), (ends, -wanted, run.schedule)]
        yield from _too_many(queue, most, sorted(steps, key=lambda step: (step[0], step[1])))


def _too_many(queue: str, most: int, steps: Sequence[tuple[datetime, int, str]]) -> Iterator[Clash]:
    now: dict[str, int] = {}
    since: datetime | None = None
    peak, who = 0, dict[str, None]()
    for at, change, schedule in steps:
        now[schedule] = now.get(schedule, 0) + change
        wanted = sum(now.values())
        if wanted > most:
            since = since or at
            peak = max(peak, wanted)
            who.update(dict.fromkeys(name for name, slots in now.items() if slots))
        elif since is not None:
            words = f"queue {queue} has room for {most:,} at a time, and up to {peak:,} are wanted"
            yield Clash("slots", since, at, tuple(sorted(who)), words, queue)
            since, peak, who = None, 0, {}


def _by_subject(subjects: Sequence[Subject], runs: Sequence[Run]) -> Iterator[tuple[Subject, list[Run]]]:
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run.schedule, []).append(run)
    for subject in sorted(subjects, key=lambda subject: subject.name):
        yield subject, by_name.get(subject.name, [])


def _total(subject: Subject, runs: Sequence[Run]) -> Total:
    total = Total(subject.name, subject.seconds, subject.duration_is, due=len(runs))
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
