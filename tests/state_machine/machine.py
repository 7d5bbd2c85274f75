"""Hypothesis rules on schedules, executions and batches: each acts on the database and on the model, and both must
agree.

The rules are small: `actions` changes the database, `world` and `timetables` are the model, `comparison` compares
them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tenuto.diagnostics.checks import Severity
from tenuto.diagnostics.doctor import examine
from tenuto.model.triggers import every
from tests.state_machine.comparison import differences
from tests.state_machine.task_rules import NAMES, WorkRules, pick, refused
from tests.state_machine.timetables import Timetable
from tests.state_machine.world import Lot, Run, Work

minutes = st.sampled_from([1, 2])
overlap = st.sampled_from(["skip", "queue_one", "allow", "cancel_previous"])
groups = st.sampled_from([(1,), (2, 1), (1, 2, 1)])


class Machine(WorkRules):
    """The complete state machine."""

    @initialize(minutes=minutes, overlap=overlap, groups=groups, items=st.integers(0, 2))
    def initial_state(self, minutes: int, overlap: str, groups: tuple[int, ...], items: int) -> None:
        """Start with two workers, a schedule that runs, a few tasks, and perhaps a batch."""
        for name in NAMES:
            self.workers[name], before = self.actions.register(name)
            assert before is None
        self.create_schedule(minutes, overlap, groups)
        self.run_by_hand(0)
        self.enqueue("default", 0, 0)
        self.enqueue_with_a_limited_key(1)
        if items:
            self.a_batch_comes_in(items)

    # --- schedules --------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.calendar.tables) < 3)
    @rule(minutes=minutes, overlap=overlap, groups=groups)
    def create_schedule(self, minutes: int, overlap: str, groups: tuple[int, ...]) -> None:
        self.number += 1
        name = f"schedule {self.number}"
        made = self.actions.create_schedule(name, minutes, overlap, groups, self.world.now)
        table = Timetable(made.id, name, every(f"{minutes}m"), overlap, groups, enabled=True, next_run=None)
        table.next_run = table.after(self.world.now)
        self.calendar.tables[name] = table

    @precondition(lambda self: self.calendar.tables)
    @rule(pick=pick, minutes=minutes, overlap=overlap, groups=groups)
    def edit_schedule(self, pick: int, minutes: int, overlap: str, groups: tuple[int, ...]) -> None:
        table = self._table(pick)
        self.actions.edit_schedule(table.name, minutes, overlap, groups, self.world.now)
        retimed = every(f"{minutes}m") != table.trigger
        if retimed:
            self.calendar.leave_overdue(table, self.world.now)
            self.calendar.leave_pause(table, self.world.now)
        table.trigger, table.overlap, table.groups = every(f"{minutes}m"), overlap, groups
        if retimed:
            table.next_run = table.after(self.world.now) if table.enabled else None
            table.off_since = None if table.enabled else self.world.now

    @precondition(lambda self: self.calendar.tables)
    @rule(pick=pick, enabled=st.booleans())
    def set_schedule_enabled(self, pick: int, enabled: bool) -> None:
        table = self._table(pick)
        if table.enabled == enabled:
            return
        self.actions.set_enabled(table.name, self.world.now, enabled=enabled)
        self.calendar.leave_overdue(table, self.world.now)
        self.calendar.leave_pause(table, self.world.now)
        table.enabled = enabled
        table.next_run = table.after(self.world.now) if enabled else None
        table.off_since = None if enabled else self.world.now
        if not enabled:
            self.calendar.give_up(table, by_hand_too=False)

    @precondition(lambda self: self.calendar.tables)
    @rule(pick=pick)
    def delete_schedule(self, pick: int) -> None:
        table = self._table(pick)
        if any(self.world.active(table.name)):
            with refused():
                self.actions.delete_schedule(table.name, self.world.now)
            return
        self.actions.delete_schedule(table.name, self.world.now)
        self.calendar.leave_overdue(table, self.world.now)
        self.calendar.give_up(table, by_hand_too=True)
        del self.calendar.tables[table.name]

    @rule(minutes=st.integers(1, 3))
    def time_passes_and_a_scheduler_looks(self, minutes: int) -> None:
        self.world.now += timedelta(minutes=minutes)
        self.those_that_waited_take_their_turn()
        self.fire()

    @rule()
    def fire(self) -> None:
        due = [
            table
            for table in self.calendar.tables.values()
            if table.enabled and self.calendar.due(table, self.world.now)
        ]
        assert self.actions.fire_due_schedules(self.world.now) == len(due)
        wanted = [(table.name, self._fires(table)) for table in due]
        self._adopt([(name, due_at) for name, due_at in wanted if due_at is not None])

    def _fires(self, table: Timetable) -> datetime | None:
        *earlier, last = self.calendar.due(table, self.world.now)
        for instant in earlier:
            self.calendar.write(table, instant, "coalesced")
        table.next_run = table.after(last)
        decision = self._meets(table)
        self.been[f"instant {decision}"] += 1
        self.calendar.write(table, last, decision)
        return last if decision == "fired" else None

    def _meets(self, table: Timetable) -> str:
        if table.overlap == "cancel_previous":
            for run in list(self.world.active(table.name)):
                if run.state == "in_progress":
                    self.world.cancel_run(run.id)
        return self.calendar.meets(table, active=any(self.world.active(table.name)))

    @precondition(lambda self: self.calendar.tables)
    @rule(pick=pick)
    def run_by_hand(self, pick: int) -> None:
        table = self._table(pick)
        decision = self.actions.run_manually(table.name, self.world.now)
        assert decision == self._meets(table)
        self.calendar.write(table, self.world.now, decision, "manual")
        self._adopt([(table.name, self.world.now)] if decision == "fired" else [])

    @rule()
    def those_that_waited_take_their_turn(self) -> None:
        begun = []
        for table in self.calendar.tables.values():
            waiting = self.calendar.queued(table.name)
            if waiting and not any(self.world.active(table.name)):
                waiting[0].decision = "fired"
                begun.append((table.name, waiting[0].due))
        assert self.actions.start_queued_runs(self.world.now) == len(begun)
        self._adopt(begun)

    def _adopt(self, wanted: list[tuple[str, datetime]]) -> None:
        """Match the expected executions, and no others, with the ids of the database."""
        seen = self.actions.snapshot()
        new = [row for row in seen.runs if row["id"] not in self.world.runs]
        assert sorted((row["schedule_name"], row["due_at"]) for row in new) == sorted(wanted)
        for row in new:
            groups = self.calendar.tables[row["schedule_name"]].groups
            steps = [
                Work(task["id"], task["queue"], self.world.now, run=row["id"], group=task["group_index"])
                for task in seen.tasks
                if task["execution_id"] == row["id"]
            ]
            assert sorted(step.group or 0 for step in steps) == [
                g for g, count in enumerate(groups) for _ in range(count)
            ]
            self.world.begins(Run(row["id"], row["schedule_name"], len(groups)), steps)

    # --- executions -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.runs)
    @rule(pick=pick)
    def cancel_an_execution(self, pick: int) -> None:
        run = self.world.runs[self._one_of(self.world.runs, pick)]
        if run.state != "in_progress":
            with refused():
                self.actions.cancel_execution(run.id, self.world.now)
            return
        told = self.actions.cancel_execution(run.id, self.world.now)
        self.world.cancel_run(run.id)
        assert told == ("cancelled" if run.ended else "stopping")

    @precondition(lambda self: any(not run.ended for run in self.world.runs.values()))
    @rule(pick=pick)
    def pause_or_resume_an_execution(self, pick: int) -> None:
        going = {run.id: run for run in self.world.runs.values() if not run.ended}
        run = going[self._one_of(going, pick)]
        if run.state != "in_progress":
            with refused():
                self.actions.pause_execution(run.id, self.world.now)
        elif run.paused:
            self.actions.resume_execution(run.id, self.world.now)
            self.world.resume_run(run.id)
        else:
            self.actions.pause_execution(run.id, self.world.now)
            self.world.pause_run(run.id)

    # --- batches ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.lots) < 2)
    @rule(items=st.integers(1, 4))
    def a_batch_comes_in(self, items: int) -> None:
        self.number += 1
        id = self.actions.submit_batch(f"bake-{self.number}", items, self.world.now)
        self.world.lots[id] = Lot(id)
        of_it = [row for row in self.actions.snapshot().tasks if row["batch_id"] == id]
        assert len(of_it) == items
        for row in of_it:
            key, most = row["limit_key"], row["limit_max"]
            self.world.add(Work(row["id"], row["queue"], self.world.now, limit_key=key, limit_max=most, batch=id))

    @precondition(lambda self: self.world.lots)
    @rule(pick=pick)
    def pause_or_resume_a_batch(self, pick: int) -> None:
        lot = self.world.lots[self._one_of(self.world.lots, pick)]
        if lot.cancelled:
            with refused():
                self.actions.pause_batch(lot.id, self.world.now)
        elif lot.paused:
            self.actions.resume_batch(lot.id, self.world.now)
            self.world.resume_lot(lot.id)
        else:
            self.actions.pause_batch(lot.id, self.world.now)
            self.world.pause_lot(lot.id)

    @precondition(lambda self: any(not lot.cancelled for lot in self.world.lots.values()))
    @rule(pick=pick)
    def cancel_a_batch(self, pick: int) -> None:
        going = {lot.id: lot for lot in self.world.lots.values() if not lot.cancelled}
        id = self._one_of(going, pick)
        self.actions.cancel_batch(id, self.world.now)
        self.world.cancel_lot(id)

    # --- after each step --------------------------------------------------------------------------------------------

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        assert differences(self.actions.snapshot(), self.world, self.calendar) == []
        self.world.now += timedelta(
            milliseconds=1
        )  # two requests at the same instant count as one repeated request

    def teardown(self) -> None:
        findings = self.actions.run(examine(self.actions.db, self.settings))
        expired = any(not work.lives for work in self.world.tasks.values() if work.state == "running")
        fine = {"task_held_by_missing_worker", "lease_expired"} if expired or self.gone else set()
        bad = [each for each in findings if each.severity is Severity.PROBLEM and each.name not in fine]
        assert bad == []
        self.been.update(f"{record.status} {record.reason}".strip() for record in self.world.records)
        self.been.update(f"execution {run.state}" for run in self.world.runs.values() if run.ended)
        self.been.update(f"instant {entry.decision}" for entry in self.calendar.ledger)

    def _table(self, pick: int) -> Timetable:
        return self.calendar.tables[sorted(self.calendar.tables)[pick % len(self.calendar.tables)]]
