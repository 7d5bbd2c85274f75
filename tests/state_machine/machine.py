"""Hypothesis rules on schedules, executions and batches: each acts on the database and on the model, and both must
agree.

The rules are small: `actions` changes the database, `world` and `timetables` are the model, `comparison` compares
them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tenuto.model.doctor_findings import Severity
from tenuto.model.triggers import every
from tests.state_machine.comparison import differences
from tests.state_machine.task_rules import NAMES, TaskRules, pick, rejected
from tests.state_machine.timetables import ScheduleModel
from tests.state_machine.world import BatchModel, ExecutionModel, TaskModel
from tests.support.doctor import run_checks

minutes = st.sampled_from([1, 2])
overlap = st.sampled_from(["skip", "queue_one", "allow", "cancel_previous"])
groups = st.sampled_from([(1,), (2, 1), (1, 2, 1)])


class Machine(TaskRules):
    """The complete state machine."""

    @initialize(minutes=minutes, overlap=overlap, groups=groups, items=st.integers(0, 2))
    def initial_state(self, minutes: int, overlap: str, groups: tuple[int, ...], items: int) -> None:
        """Start with two workers, a schedule that runs, a few tasks, and perhaps a batch."""
        for name in NAMES:
            self.worker_ids[name], before = self.actions.register(name)
            assert before is None
        self.create_schedule(minutes, overlap, groups)
        self.run_manually(0)
        self.enqueue("default", 0, 0)
        self.enqueue_with_limit_key(1)
        if items:
            self.submit_batch(items)

    # --- schedules --------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.schedule_models.schedules) < 3)
    @rule(minutes=minutes, overlap=overlap, groups=groups)
    def create_schedule(self, minutes: int, overlap: str, groups: tuple[int, ...]) -> None:
        self.number += 1
        name = f"schedule {self.number}"
        made = self.actions.create_schedule(name, minutes, overlap, groups, self.world.now)
        table = ScheduleModel(made.id, name, every(f"{minutes}m"), overlap, groups, enabled=True, next_run_at=None)
        table.next_run_at = table.next_after(self.world.now)
        self.schedule_models.schedules[name] = table

    @precondition(lambda self: self.schedule_models.schedules)
    @rule(pick=pick, minutes=minutes, overlap=overlap, groups=groups)
    def edit_schedule(self, pick: int, minutes: int, overlap: str, groups: tuple[int, ...]) -> None:
        table = self._pick_schedule(pick)
        self.actions.edit_schedule(table.name, minutes, overlap, groups, self.world.now)
        retimed = every(f"{minutes}m") != table.trigger
        if retimed:
            self.schedule_models.record_overdue(table, self.world.now)
            self.schedule_models.record_disabled_period(table, self.world.now)
        table.trigger, table.overlap, table.groups = every(f"{minutes}m"), overlap, groups
        if retimed:
            table.next_run_at = table.next_after(self.world.now) if table.enabled else None
            table.disabled_since = None if table.enabled else self.world.now

    @precondition(lambda self: self.schedule_models.schedules)
    @rule(pick=pick, enabled=st.booleans())
    def set_schedule_enabled(self, pick: int, enabled: bool) -> None:
        table = self._pick_schedule(pick)
        if table.enabled == enabled:
            return
        self.actions.set_enabled(table.name, self.world.now, enabled=enabled)
        self.schedule_models.record_overdue(table, self.world.now)
        self.schedule_models.record_disabled_period(table, self.world.now)
        table.enabled = enabled
        table.next_run_at = table.next_after(self.world.now) if enabled else None
        table.disabled_since = None if enabled else self.world.now
        if not enabled:
            self.schedule_models.abandon_queued(table, by_hand_too=False)

    @precondition(lambda self: self.schedule_models.schedules)
    @rule(pick=pick)
    def delete_schedule(self, pick: int) -> None:
        table = self._pick_schedule(pick)
        if any(self.world.has_active(table.name)):
            with rejected():
                self.actions.delete_schedule(table.name, self.world.now)
            return
        self.actions.delete_schedule(table.name, self.world.now)
        self.schedule_models.record_overdue(table, self.world.now)
        self.schedule_models.abandon_queued(table, by_hand_too=True)
        del self.schedule_models.schedules[table.name]

    @rule(minutes=st.integers(1, 3))
    def advance_time_and_fire(self, minutes: int) -> None:
        self.world.now += timedelta(minutes=minutes)
        self.start_queued_runs()
        self.fire_due_schedules()

    @rule()
    def fire_due_schedules(self) -> None:
        due = [
            table
            for table in self.schedule_models.schedules.values()
            if table.enabled and self.schedule_models.due_instants(table, self.world.now)
        ]
        assert self.actions.fire_due_schedules(self.world.now) == len(due)
        wanted = [(table.name, self._expect_firing(table)) for table in due]
        self._adopt_executions([(name, due_at) for name, due_at in wanted if due_at is not None])

    def _expect_firing(self, table: ScheduleModel) -> datetime | None:
        *earlier, last = self.schedule_models.due_instants(table, self.world.now)
        for instant in earlier:
            self.schedule_models.record(table, instant, "coalesced")
        table.next_run_at = table.next_after(last)
        decision = self._apply_overlap_policy(table)
        self.visited[f"instant {decision}"] += 1
        self.schedule_models.record(table, last, decision)
        return last if decision == "fired" else None

    def _apply_overlap_policy(self, table: ScheduleModel) -> str:
        if table.overlap == "cancel_previous":
            for run in list(self.world.has_active(table.name)):
                if run.state == "in_progress":
                    self.world.cancel_execution(run.id)
        return self.schedule_models.decide_overlap(table, active=any(self.world.has_active(table.name)))

    @precondition(lambda self: self.schedule_models.schedules)
    @rule(pick=pick)
    def run_manually(self, pick: int) -> None:
        table = self._pick_schedule(pick)
        decision = self.actions.run_manually(table.name, self.world.now)
        assert decision == self._apply_overlap_policy(table)
        self.schedule_models.record(table, self.world.now, decision, "manual")
        self._adopt_executions([(table.name, self.world.now)] if decision == "fired" else [])

    @rule()
    def start_queued_runs(self) -> None:
        begun = []
        for table in self.schedule_models.schedules.values():
            waiting = self.schedule_models.queued(table.name)
            if waiting and not any(self.world.has_active(table.name)):
                waiting[0].decision = "fired"
                begun.append((table.name, waiting[0].due_at))
        assert self.actions.start_queued_runs(self.world.now) == len(begun)
        self._adopt_executions(begun)

    def _adopt_executions(self, wanted: list[tuple[str, datetime]]) -> None:
        """Match the expected executions, and no others, with the ids of the database."""
        seen = self.actions.snapshot()
        new = [row for row in seen.runs if row["id"] not in self.world.executions]
        assert sorted((row["schedule_name"], row["due_at"]) for row in new) == sorted(wanted)
        for row in new:
            groups = self.schedule_models.schedules[row["schedule_name"]].groups
            steps = [
                TaskModel(task["id"], task["queue"], self.world.now, execution=row["id"], group=task["group_index"])
                for task in seen.tasks
                if task["execution_id"] == row["id"]
            ]
            assert sorted(step.group or 0 for step in steps) == [
                g for g, count in enumerate(groups) for _ in range(count)
            ]
            self.world.start_execution(ExecutionModel(row["id"], row["schedule_name"], len(groups)), steps)

    # --- executions -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.executions)
    @rule(pick=pick)
    def cancel_execution(self, pick: int) -> None:
        run = self.world.executions[self._pick(self.world.executions, pick)]
        if run.state != "in_progress":
            with rejected():
                self.actions.cancel_execution(run.id, self.world.now)
            return
        answer = self.actions.cancel_execution(run.id, self.world.now)
        self.world.cancel_execution(run.id)
        assert answer == ("cancelled" if run.has_ended else "stopping")

    @precondition(lambda self: any(not run.has_ended for run in self.world.executions.values()))
    @rule(pick=pick)
    def pause_or_resume_execution(self, pick: int) -> None:
        going = {run.id: run for run in self.world.executions.values() if not run.has_ended}
        run = going[self._pick(going, pick)]
        if run.state != "in_progress":
            with rejected():
                self.actions.pause_execution(run.id, self.world.now)
        elif run.is_paused:
            self.actions.resume_execution(run.id, self.world.now)
            self.world.resume_execution(run.id)
        else:
            self.actions.pause_execution(run.id, self.world.now)
            self.world.pause_execution(run.id)

    # --- batches ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.batches) < 2)
    @rule(items=st.integers(1, 4))
    def submit_batch(self, items: int) -> None:
        self.number += 1
        id = self.actions.submit_batch(f"bake-{self.number}", items, self.world.now)
        self.world.batches[id] = BatchModel(id)
        of_it = [row for row in self.actions.snapshot().tasks if row["batch_id"] == id]
        assert len(of_it) == items
        for row in of_it:
            key, most = row["limit_key"], row["limit_max"]
            self.world.add(TaskModel(row["id"], row["queue"], self.world.now, limit_key=key, limit_max=most, batch=id))

    @precondition(lambda self: self.world.batches)
    @rule(pick=pick)
    def pause_or_resume_batch(self, pick: int) -> None:
        lot = self.world.batches[self._pick(self.world.batches, pick)]
        if lot.is_cancelled:
            with rejected():
                self.actions.pause_batch(lot.id, self.world.now)
        elif lot.is_paused:
            self.actions.resume_batch(lot.id, self.world.now)
            self.world.resume_batch(lot.id)
        else:
            self.actions.pause_batch(lot.id, self.world.now)
            self.world.pause_batch(lot.id)

    @precondition(lambda self: any(not batch.is_cancelled for batch in self.world.batches.values()))
    @rule(pick=pick)
    def cancel_batch(self, pick: int) -> None:
        going = {lot.id: lot for lot in self.world.batches.values() if not lot.is_cancelled}
        id = self._pick(going, pick)
        self.actions.cancel_batch(id, self.world.now)
        self.world.cancel_batch(id)

    # --- after each step --------------------------------------------------------------------------------------------

    @invariant()
    def tables_match_model(self) -> None:
        found = differences(self.actions.snapshot(), self.world, self.schedule_models)
        assert found == [], found[:5]
        self.world.now += timedelta(milliseconds=1)  # two requests at the same instant count as one repeated request

    def teardown(self) -> None:
        findings = self.actions.run(run_checks(self.actions.db, self.settings))
        expired = any(not work.has_live_lease for work in self.world.tasks.values() if work.state == "running")
        fine = {"task_held_by_missing_worker", "lease_expired"} if expired or self.ended_worker_ids else set()
        bad = [each for each in findings if each.severity is Severity.PROBLEM and each.name not in fine]
        assert bad == []
        self.visited.update(f"{record.status} {record.reason}".strip() for record in self.world.activities)
        self.visited.update(f"execution {run.state}" for run in self.world.executions.values() if run.has_ended)
        self.visited.update(f"instant {entry.decision}" for entry in self.schedule_models.ledger)

    def _pick_schedule(self, pick: int) -> ScheduleModel:
        return self.schedule_models.schedules[
            sorted(self.schedule_models.schedules)[pick % len(self.schedule_models.schedules)]
        ]
