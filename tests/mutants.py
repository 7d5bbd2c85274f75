"""The guards, each taken away once: `scripts/mutants` does it and sees that a test notices.

A new guard is two lines here: what it is called and where it stands; the passage that is it, and the test that must
fail without it. `taken` removes the passage, `swapped` puts something harmless in its place. Then
``scripts/mutants WORD-OF-ITS-NAME`` tries it and writes it into docs/guards.md.
"""

# ruff: noqa: E501 (a table: a guard is two lines, however long its passage)
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """In this file of the package the passage becomes something else, and one of these tests must fail."""

    name: str
    file: str
    passage: str
    becomes: str
    tests: tuple[str, ...]
    times: int = 1
    """How often the passage stands in the file; all of them are replaced."""


def taken(name: str, file: str, passage: str, *tests: str, times: int = 1) -> Mutant:
    """A guard that is simply gone."""
    return Mutant(name, file, passage, "", tests, times)


def swapped(name: str, file: str, passage: str, becomes: str, *tests: str, times: int = 1) -> Mutant:
    """A guard with something in its place that guards nothing."""
    return Mutant(name, file, passage, becomes, tests, times)


SQL = "store/tasks.sql"
WORKERS = "store/workers.py"
SCHEMA = "store/migrations/0001_tasks_and_activities.sql"
SCHEDULES_SCHEMA = "store/migrations/0002_schedules_and_executions.sql"
FINISHING, RUNS_SQL, SCHEDULES = "store/finishing.py", "store/executions.sql", "store/schedules.sql"
RUNS = "races/test_schedule_guards.py::test_"
GUARDS, ZOMBIES, KEYS = "races/test_guards.py::test_", "races/test_zombies.py::test_", "races/test_keys.py::test_"
LOST, CLAIM, SWEEP = "races/test_lost_replies.py::test_", "store/test_claim.py::test_", "engine/test_sweeper.py::test_"

# fmt: off
MUTANTS = (
    # --- start
    swapped("start: a task there is once", SQL, "    ON CONFLICT DO NOTHING\n    RETURNING id, state", "    RETURNING id, state",
            GUARDS + "a_task_started_twice_is_there_once"),
    swapped("start: many there are once", SQL, "ON CONFLICT DO NOTHING\nRETURNING id;", "RETURNING id;",
            "store/test_start.py::test_of_tasks_partly_there_only_the_new_ones_are_created"),
    swapped("start: what may have ended is looked for when it is sent again", "store/tasks.py", "await database.once(SQL.start_one,", "await database.all(SQL.start_one,",
            LOST + "a_job_that_ended_before_its_lost_reply_was_noticed_is_not_created_again"),
    taken("start: nor do many", SQL, "WHERE (SELECT activities.id FROM tenuto.activities WHERE activities.id = new.id) IS NULL\n",
          GUARDS + "tasks_that_have_ended_are_not_started_again"),
    swapped("start: copying is asked for once", "store/database.py", "await self._persist(load, tries=1)\n", "await self._persist(load)\n",
            LOST + "of_many_jobs_those_that_ended_before_the_lost_reply_was_noticed_are_not_created_again"),
    swapped("start: one open task per key", SCHEMA, "CREATE UNIQUE INDEX tasks_one_per_key", "CREATE INDEX tasks_one_per_key",
            GUARDS + "an_open_task_has_its_key_to_itself"),
    swapped("start: one task per id", SCHEMA, "    id              uuid PRIMARY KEY,\n    activity_id", "    id              uuid,\n    activity_id",
            GUARDS + "a_task_started_twice_is_there_once"),
    swapped("start: a key that became free is taken", "store/tasks.py",
            "            return standing\n        created = bool(await start(database, [task]))", "            return standing\n        created = True",
            KEYS + "a_key_that_becomes_free_while_somebody_asks_for_it_loses_no_task"),
    # --- claim
    swapped("claim: what another has in hand is passed over", SQL, "        LIMIT $4\n        FOR UPDATE SKIP LOCKED\n    ) AS picked\n    WHERE wanted",
            "        LIMIT $4\n        FOR UPDATE\n    ) AS picked\n    WHERE wanted", GUARDS + "a_claim_passes_over_what_another_one_has_in_hand"),
    swapped("claim: what is taken is locked", SQL, "        LIMIT $4\n        FOR UPDATE SKIP LOCKED\n    ) AS picked\n    WHERE wanted",
            "        LIMIT $4\n    ) AS picked\n    WHERE wanted", GUARDS + "what_one_claim_has_taken_no_other_takes"),
    taken("claim: the dead take nothing", SQL, "  AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $1 AND ended_at IS NULL)\n",
          GUARDS + "a_worker_declared_dead_claims_nothing", times=2),
    taken("claim: each has a fence of its own", SQL, "    fence = fence + 1,\n",
          CLAIM + "the_fence_grows_with_every_claim", times=2),
    swapped("claim: is asked for once", "store/tasks.py", "rows = await database.once(SQL.claim,", "rows = await database.all(SQL.claim,",
            LOST + "tasks_whose_claim_got_lost_come_back_when_their_lease_ends"),
    swapped("claim: limited and paused queues are left to those who count", SQL, "WHERE max_running IS NOT NULL OR paused_at IS NOT NULL\n", "WHERE false\n",
            CLAIM + "a_plain_claim_leaves_limited_and_paused_queues_and_limited_keys_alone"),
    swapped("claim: those who count take turns", SQL, "SELECT pg_advisory_xact_lock(hashtext('tenuto limits'));", "SELECT 1;",
            GUARDS + "a_claim_under_limits_waits_for_the_one_before_it"),
    swapped("claim: a pause holds", SQL, "WHEN queues.paused_at IS NOT NULL THEN 0\n", "WHEN false THEN 0\n",
            CLAIM + "nothing_of_a_paused_queue_is_taken_until_it_is_resumed"),
    swapped("claim: only leases that live count", SQL, " AND held.limit_key = keys.key AND held.lease_until > clock_timestamp())",
            " AND held.limit_key = keys.key)", GUARDS + "a_limit_counts_only_leases_that_live"),
    swapped("claim: of a queue no more than its room", SQL, "WHERE place_in_queue <= free AND (", "WHERE (",
            "races/test_claims.py::test_limits_of_queues_and_keys_hold_exactly_over_three_worker_processes"),
    swapped("claim: of a key no more than its room", SQL, " AND (key_free IS NULL OR place_in_key <= key_free)", "",
            CLAIM + "a_key_never_runs_more_than_its_limit_over_all_queues"),
    swapped("claim: what falls due is let in once", SQL, "        LIMIT $2\n        FOR UPDATE SKIP LOCKED\n", "        LIMIT $2\n",
            GUARDS + "what_falls_due_is_let_in_by_one_and_nobody_waits_for_it"),
    swapped("claim: what came too late is not begun", "engine/worker.py",
            "too_late = self.stopping or steady() > asked_at + self._lease.total_seconds() * (1 - SAFETY)", "too_late = False",
            ZOMBIES + "a_claim_that_took_most_of_its_lease_to_arrive_is_put_back"),
    swapped("claim: under load somebody looks about", "engine/worker.py", " or steady() >= self._looked_at + self.settings.poll_seconds:", ":",
            "races/test_database_away.py::test_urgent_work_nobody_was_told_of_overtakes_under_full_load_within_a_poll"),
    # --- renew
    taken("renew: the fence", SQL, "  AND tasks.fence = held.fence\n",
          GUARDS + "a_stale_fence_renews_nothing"),
    swapped("renew: the worker", SQL, "  AND tasks.worker_id = $1\n", "  AND $1::uuid IS NOT NULL\n",
            GUARDS + "a_worker_renews_nothing_of_another"),
    taken("renew: a lease that has run out is not prolonged", SQL, "  AND tasks.lease_until > clock_timestamp()\nRETURNING",
          GUARDS + "a_lease_that_has_run_out_is_not_renewed"),
    swapped("renew: code is stopped before its lease ends", "engine/watchdog.py",
            "                attempt.stop(Stop.LEASE_LOST)\n                if attempt.started_at is not None and now >", "                if False and now >",
            ZOMBIES + "a_worker_that_cannot_reach_the_database_stops_its_code_before_its_lease_ends"),
    swapped("renew: code that does not stop takes the process with it", "engine/watchdog.py",
            "    )\n    os._exit(EXIT_LOST_CONTROL)", "    )\n    return  # type: ignore",
            ZOMBIES + "a_worker_whose_code_cannot_be_stopped_in_time_ends_itself"),
    taken("renew: a dead line is given up in time", "engine/watchdog.py", "            patience=max(self._renew_every, 1.0),\n",
          ZOMBIES + "a_renewal_that_goes_unanswered_is_sent_over_another_line_in_time"),
    swapped("renew: the dead are told so", "store/workers.sql", "WHERE id = $1 AND ended_at IS NULL\nRETURNING clock_timestamp()",
            "WHERE id = $1\nRETURNING clock_timestamp()", "store/test_workers.py::test_a_sign_of_life_is_answered_with_the_time_and_the_dead_get_none"),
    # --- finish
    taken("finish: the fence of what ends", SQL, "      AND task.fence = outcome.fence\n      AND task.worker_id IS NOT DISTINCT FROM $1::uuid\n    RETURNING",
          GUARDS + "an_outcome_with_a_stale_fence_changes_nothing"),
    taken("finish: the fence of what is repeated", SQL, "      AND task.fence = outcome.fence\n      AND task.worker_id IS NOT DISTINCT FROM $1::uuid\n      AND task.cancel_at",
          GUARDS + "an_outcome_with_a_stale_fence_changes_nothing"),
    swapped("finish: the worker", SQL, "      AND task.worker_id IS NOT DISTINCT FROM $1::uuid\n", "      AND (task.worker_id IS NULL) = ($1::uuid IS NULL)\n",
            GUARDS + "an_outcome_of_another_worker_changes_nothing_even_with_the_right_fence", times=2),
    swapped("finish: what is repeated is locked", SQL, "    ORDER BY task.id\n    FOR UPDATE OF task\n", "    ORDER BY task.id\n",
            GUARDS + "only_one_of_two_equal_outcomes_at_once_is_written", "races/test_cancel_races.py"),
    taken("finish: what was told to stop is not repeated", SQL, "      AND task.cancel_at IS NULL\n    ORDER BY task.id\n    FOR UPDATE OF",
          GUARDS + "a_task_that_was_told_to_stop_is_not_repeated"),
    taken("put back: the fence", SQL, "      AND task.fence = held.fence\n",
          GUARDS + "a_stale_fence_puts_nothing_back"),
    swapped("put back: the worker", SQL, "      AND task.worker_id = $1\n      AND task.state", "      AND $1::uuid IS NOT NULL\n      AND task.state",
            GUARDS + "a_worker_puts_nothing_of_another_back"),
    taken("put back: what was told to stop stays", SQL, "      AND task.cancel_at IS NULL\n    RETURNING task.id, task.queue",
          GUARDS + "a_task_that_was_told_to_stop_is_not_put_back"),
    swapped("stop: only the attempt that was meant", SQL, "WHERE id = $1 AND fence = $2 AND state = 'running'", "WHERE id = $1 AND $2::bigint IS NOT NULL AND state = 'running'",
            GUARDS + "a_stop_asked_of_an_earlier_attempt_does_not_reach_the_next"),
    swapped("stop: only what runs", SQL, "WHERE id = $1 AND fence = $2 AND state = 'running'", "WHERE id = $1 AND fence = $2",
            "races/test_cancel_races.py"),
    # --- the nets
    swapped("sweep: a live lease is left alone", SQL, "WHERE state = 'running' AND lease_until < clock_timestamp()\n  AND (execution_id IS NULL", "WHERE state = 'running'\n  AND (execution_id IS NULL",
          "store/test_finish.py::test_only_tasks_whose_lease_has_run_out_are_expired"),
    swapped("sweep: what it looks at is locked", SQL, "ORDER BY queue, id\nLIMIT $1\nFOR UPDATE SKIP LOCKED;",
            "ORDER BY queue, id\nLIMIT $1;", GUARDS + "two_sweeps_at_once_count_a_loss_once", GUARDS + "what_a_sweep_looks_at_cannot_be_told_to_stop_behind_its_back"),
    swapped("sweep: what kills its workers is set aside", "model/tasks.py", "if task.policy.on_lost == \"fail\" or losses >= LOSSES_BEFORE_SET_ASIDE:", "if task.policy.on_lost == \"fail\":",
            SWEEP + "a_task_that_keeps_killing_its_workers_is_set_aside_at_the_third"),
    swapped("sweep: last chances come one at a time", "model/tasks.py", "return self.losses >= LOSSES_BEFORE_SET_ASIDE - 1", "return False",
            SWEEP + "tasks_with_one_chance_left_run_one_at_a_time"),
    swapped("sweep: what was told to stop ends as cancelled", "engine/sweeper.py", "if (by := task.cancelled_by) is not None:", "if (by := task.cancelled_by) is not None and False:",
            SWEEP + "a_task_somebody_had_asked_to_stop_ends_as_cancelled"),
    taken("register: who holds something is not buried", "store/workers.sql", "  AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE state = 'running' AND worker_id = workers.id)\n",
          "store/test_workers.py::test_the_silent_are_buried_unless_they_hold_something"),
    swapped("register: one alive per name", SCHEMA, "CREATE UNIQUE INDEX workers_one_alive_per_name", "CREATE INDEX workers_one_alive_per_name",
            GUARDS + "of_one_name_only_one_is_alive"),
    swapped("register: a lock proves a death only in the same home", WORKERS, "(same_host and name_is_mine)", "name_is_mine",
            "store/test_workers.py::test_the_same_name_on_another_host_is_not_proof_even_if_the_lock_is_ours"),
    swapped("register: each home has an id of its own", "engine/identity.py", "#{_home_id(self._home)}", "",
            "engine/test_identity.py::test_a_worker_in_a_container_with_the_same_hostname_and_path_is_not_declared_dead"),
    swapped("register: one process per name and home", "engine/identity.py", "fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)", "fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)",
            KEYS + "a_name_in_use_on_this_machine_is_refused_and_free_again_when_its_process_is_killed"),
    # --- the past, and the shape of things
    swapped("past: changes are refused", SCHEMA, "IF TG_OP = 'DELETE' AND current_setting('tenuto.retention', true) = 'on' THEN", "IF true THEN",
            GUARDS + "the_past_cannot_be_changed"),
    swapped("past: the trigger", SCHEMA, "FOR EACH ROW EXECUTE FUNCTION tenuto.refuse_to_change_the_past();", "FOR EACH ROW WHEN (false) EXECUTE FUNCTION tenuto.refuse_to_change_the_past();",
            GUARDS + "the_past_cannot_be_changed"),
    swapped("past: it is not emptied either", SCHEMA, "FOR EACH STATEMENT EXECUTE", "FOR EACH STATEMENT WHEN (false) EXECUTE",
            "store/test_activities.py::test_the_database_refuses_to_change_the_past_and_says_so", times=2),
    swapped("past: nor is a month of it", "store/partitions.py", "FOR EACH STATEMENT EXECUTE", "FOR EACH STATEMENT WHEN (false) EXECUTE",
            "store/test_activities.py::test_the_database_refuses_to_change_the_past_and_says_so"),
    swapped("tasks: running means held", SCHEMA, "CHECK ((state = 'running') = (worker_id IS NOT NULL AND lease_until IS NOT NULL AND claimed_at IS NOT NULL))", "CHECK (true)",
            GUARDS + "a_held_task_has_a_holder_a_lease_and_the_hour_it_was_taken"),
    swapped("tasks: the first attempt is the task", SCHEMA, "CHECK ((attempt = 1) = (activity_id = id))", "CHECK (true)",
            "store/test_start.py::test_the_database_itself_refuses_a_task_that_contradicts_itself"),
    # --- processes and servers
    swapped("migrate: one at a time", "store/migrate.py", "\"SELECT pg_advisory_xact_lock(hashtext('tenuto migrate'))\"", '"SELECT 1"',
            KEYS + "migrations_raced_by_several_processes_are_applied_once"),
    swapped("database: the driver's own errors are tried again", "store/database.py", "asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError)", "asyncpg.InterfaceError, TimeoutError)",
            "races/test_database_away.py::test_backends_ended_at_random_under_load_lose_nothing_and_double_nothing"),
    swapped("worker: children die with it", "handlers/child.py", ".prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)", ".getpid()",
            ZOMBIES + "the_children_of_a_killed_worker_are_gone_within_a_second"),
    swapped("worker: code is told to stop once", "engine/worker.py", "if attempt.stop_reason is None:  # told once", "if True:  # told once",
            "races/test_drain.py::test_code_that_is_told_to_stop_may_clean_up_undisturbed"),
    swapped("worker: it leaves without an answer", "engine/signals.py", "    os._exit(EXIT_LOST_CONTROL)", "    return",
            "races/test_drain.py::test_a_worker_told_to_stop_while_the_database_is_away_leaves_all_the_same"),
    swapped("embedded: who holds the server keeps it up", "store/embedded.py", 'keeper.wait_for(home, "holders", keeper.SHARED)', 'keeper.open_beside(home, "holders")',
            "store/test_embedded.py::test_two_processes_share_one_server", "store/test_embedded.py::test_a_fork_keeps_the_hold_of_its_parent"),
    swapped("embedded: only one makes or starts it", "store/keeper.py", 'descriptor = wait_for(home, "start", ALONE)', 'descriptor = wait_for(home, "start", SHARED)',
            "store/test_embedded.py::test_several_that_come_to_an_empty_home_at_once_make_it_once"),
    swapped("embedded: an app holds it once", "connections.py", "            if self._hold is None:\n                self._hold = self._take_hold()", "            self._hold = self._take_hold()",
            "engine/test_revival.py::test_an_app_that_is_connected_several_times_at_once_holds_its_server_once"),
    # --- executions
    swapped("executions: finish holds them", FINISHING, "        await executions.lock(connection, concerned(settlements))\n", "",
            RUNS + "two_things_at_once_leave_an_execution_sound"),
    swapped("executions: what is put aside holds what it waits for", FINISHING, "    found |= {settlement.outcome.aside.execution for settlement in settlements if settlement.outcome.aside is not None}\n", "",
            RUNS + "what_would_wait_for_an_execution_that_has_just_ended_goes_on"),
    swapped("executions: the sweep holds them before their tasks", "store/tasks.py", "    await executions.lock(connection, runs)\n    return [Task(*row) for row in await connection.fetch(SQL.expired,", "    return [Task(*row) for row in await connection.fetch(SQL.expired,",
            RUNS + "a_step_given_up_as_lost_and_one_that_ends_begin_the_next_group_once"),
    swapped("executions: who takes back from the dead holds them", "store/tasks.py", "    await executions.lock(connection, runs)\n    return [Task(*row) for row in await connection.fetch(SQL.held_by,", "    return [Task(*row) for row in await connection.fetch(SQL.held_by,",
            RUNS + "a_step_given_up_as_lost_and_one_that_ends_begin_the_next_group_once"),
    swapped("executions: pausing holds them first", "engine/executing.py", "        await executions.lock(connection, [id])\n        if not await executions.pause(", "        if not await executions.pause(",
            RUNS + "two_things_at_once_leave_an_execution_sound"),
    swapped("executions: resuming holds them first", "engine/executing.py", "        await executions.lock(connection, [id])\n        if await executions.resume(", "        if await executions.resume(",
            RUNS + "two_things_at_once_leave_an_execution_sound"),
    swapped("executions: who puts back looks under their lock", SQL, "    ORDER BY id\n    FOR SHARE\n", "    ORDER BY id\n",
            RUNS + "two_things_at_once_leave_an_execution_sound"),
    swapped("executions: what is put back into a paused one waits", SQL, "CASE WHEN task.execution_id IN (SELECT id FROM runs WHERE paused_at IS NOT NULL) THEN 'waiting' ELSE 'queued' END", "'queued'",
            RUNS + "two_things_at_once_leave_an_execution_sound"),
    swapped("executions: a cancelled one does not go on", RUNS_SQL, "      AND execution.id = next.id\n      AND execution.state = 'in_progress'\n", "      AND execution.id = next.id\n",
            RUNS + "a_decision_that_comes_after_the_cancellation_begins_nothing"),
    swapped("executions: what comes next in a paused one waits", RUNS_SQL, "CASE WHEN moved.paused_at IS NULL THEN 'queued' ELSE 'waiting' END", "'queued'",
            RUNS + "what_comes_next_in_a_paused_execution_waits"),
    swapped("executions: what is tried again in a paused one waits", FINISHING, "            await executions.hold_back(connection, held)\n", "            pass\n",
            RUNS + "what_is_to_be_tried_again_in_a_paused_execution_waits"),
    swapped("executions: what has waited for another waits on in a paused one", "store/executions.py", 'if answer is not None and answer["waited"]:', "if False:",
            RUNS + "a_step_whose_schedule_has_run_waits_if_its_execution_is_paused"),
    swapped("executions: a group without steps is passed over", "store/executions.py", "    while empty:  # nobody", "    while False:  # nobody",
            RUNS + "a_group_whose_steps_were_all_cancelled_beforehand_is_passed_over"),
    swapped("executions: what runs is told to stop after the rest has ended", "engine/executing.py",
            "        waiting = await executions.not_begun(connection, done)\n        await finishing.end_within(connection, [Settlement(task, cancelled(task, now, by)) for task in waiting])\n        await executions.ask_to_stop(connection, done, by)\n",
            "        await executions.ask_to_stop(connection, done, by)\n        waiting = await executions.not_begun(connection, done)\n        await finishing.end_within(connection, [Settlement(task, cancelled(task, now, by)) for task in waiting])\n",
            RUNS + "two_things_at_once_leave_an_execution_sound"),
    swapped("executions: what a step starts is looked for under the lock", "store/executions.py", "        family = found\n        await lock(connection, family)\n", "        await lock(connection, found)\n        return found\n",
            RUNS + "who_follows_a_cancelled_execution_starts_nothing"),
    swapped("executions: a step of a cancelled one starts nothing", "engine/subschedules.py", "if ours is not None and not await executions.lock_in_progress(connection, ours):", "if False:",
            RUNS + "who_follows_a_cancelled_execution_starts_nothing"),
    swapped("executions: repair leaves alone what others hold", RUNS_SQL, "ORDER BY id\nFOR UPDATE SKIP LOCKED;", "ORDER BY id\nFOR UPDATE;",
            RUNS + "repair_does_not_wait_for_what_somebody_else_works_on"),
    swapped("executions: cancelled is final", SCHEDULES_SCHEMA, "WHEN (OLD.state <> 'in_progress' AND (NEW.state <> OLD.state OR OLD.ended_at IS NOT NULL))", "WHEN (false)",
            RUNS + "a_cancelled_execution_never_becomes_anything_else"),
    swapped("executions: what has ended is final", SCHEDULES_SCHEMA, "(NEW.state <> OLD.state OR OLD.ended_at IS NOT NULL)", "(NEW.state <> OLD.state)",
            RUNS + "an_execution_that_has_ended_cannot_be_changed"),
    swapped("executions: a cancelled one stays cancelled at its end", RUNS_SQL, "CASE WHEN execution.state = 'in_progress' THEN verdict.state ELSE execution.state END", "verdict.state",
            RUNS + "a_cancelled_execution_never_becomes_anything_else"),
    taken("executions: who is dead does not go on with the next group", RUNS_SQL, "      AND EXISTS (SELECT FROM tenuto.workers WHERE workers.id = $2 AND ended_at IS NULL)\n",
          RUNS + "a_worker_declared_dead_does_not_go_on_with_the_next_group"),
    swapped("put aside: fence", SQL, "      AND task.id = later.id\n      AND task.fence = later.fence\n", "      AND task.id = later.id\n",
            RUNS + "a_stale_fence_or_another_worker_puts_nothing_aside"),
    swapped("put aside: holder", SQL, "      AND task.fence = later.fence\n      AND task.worker_id = $1\n", "      AND task.fence = later.fence\n      AND $1::uuid IS NOT NULL\n",
            RUNS + "a_stale_fence_or_another_worker_puts_nothing_aside"),
    # --- schedules
    swapped("schedules: one active execution of what runs alone", SCHEDULES_SCHEMA, "CREATE UNIQUE INDEX executions_one_active", "CREATE INDEX executions_one_active",
            RUNS + "of_a_schedule_that_must_run_alone_there_is_one_active_execution"),
    swapped("schedules: an instant is decided once", SCHEDULES_SCHEMA, "CREATE UNIQUE INDEX occurrences_once", "CREATE INDEX occurrences_once",
            RUNS + "a_due_instant_has_one_row_in_the_ledger"),
    swapped("schedules: one run is queued", SCHEDULES_SCHEMA, "CREATE UNIQUE INDEX occurrences_one_queued", "CREATE INDEX occurrences_one_queued",
            RUNS + "one_run_of_a_schedule_waits_for_the_end_of_another"),
    swapped("schedules: the ledger is not changed", SCHEDULES_SCHEMA, "WHEN (OLD.decision <> 'queued')", "WHEN (false)",
            RUNS + "what_the_ledger_has_decided_cannot_be_changed"),
    swapped("schedules: one scheduler does not wait for another", SCHEDULES, "ORDER BY next_run_at, id\nLIMIT $2\nFOR UPDATE SKIP LOCKED;", "ORDER BY next_run_at, id\nLIMIT $2\nFOR UPDATE;",
            RUNS + "a_schedule_one_scheduler_is_firing_no_other_waits_for"),
    swapped("schedules: what is being fired is held", SCHEDULES, "ORDER BY next_run_at, id\nLIMIT $2\nFOR UPDATE SKIP LOCKED;", "ORDER BY next_run_at, id\nLIMIT $2;",
            RUNS + "a_schedule_one_scheduler_is_firing_no_other_waits_for"),
    swapped("schedules: runs by hand come one at a time", SCHEDULES, "WHERE name = $1\nFOR UPDATE;", "WHERE name = $1;",
            RUNS + "of_two_runs_by_hand_at_once_one_is_skipped"),
    swapped("schedules: turns are taken one at a time", SCHEDULES, "WHERE id = $1\nFOR UPDATE;", "WHERE id = $1;",
            RUNS + "a_schedule_whose_turn_is_being_taken_is_not_deleted_from_under_it"),
    swapped("schedules: what stands in the way is looked at", "engine/firing.py", "await _decide(connection, schedule, standing[schedule.id], firing)", "await _decide(connection, schedule, Standing(None, queued=False), firing)",
            RUNS + "what_is_due_while_another_run_is_active_is_not_fired"),
    swapped("schedules: what is to be cancelled is held in the order of all", "engine/firing.py", "        await executions.lock_family(connection, previous)\n", "        pass\n",
            RUNS + "previous_runs_are_cancelled_in_the_order_in_which_everybody_locks_them"),
    swapped("schedules: a request is decided once", "engine/firing.py", "    if (before := await schedules.decided_before(connection, request_id)) is not None:", "    if (before := await schedules.decided_before(connection, new_id())) is not None:",
            RUNS + "a_request_made_twice_is_decided_once"),
    swapped("schedules: what is decided is passed over", "engine/firing.py", "if standing.decided_until is not None and first <= standing.decided_until:", "if standing.decided_until is not None and first < standing.decided_until:",
            RUNS + "an_instant_that_is_decided_is_passed_over_however_it_came_to_be_planned_again"),
)
# fmt: on
