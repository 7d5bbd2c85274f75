"""Guards of worker processes: registration, heartbeats, the watchdog, attempts, chains, and the database they work on."""

# ruff: noqa: E501 (names of tests are as long as they are)
from __future__ import annotations

from tests.guards.guard import Condition, Remove, Replace, Value, guard

GUARDS = (
    # --- executors on a cluster
    guard(
        "executors.version_skew",
        "A job whose source differs in the cluster is not run there.",
        Condition("False"),
        "worker/executors/test_job_fingerprint.py::test_differences_are_named",
    ),
    guard(
        "executors.remote_lease",
        "Code in a cluster stops before the lease of its worker ends.",
        Condition("False"),
        "worker/executors/test_cluster.py::test_code_stops_when_its_lease_is_not_renewed",
    ),
    guard(
        "executors.remote_exit",
        "A process of a cluster whose code does not stop exits before the lease of the worker ends.",
        Remove(),
        "worker/executors/test_cluster.py::test_process_exits_if_its_code_does_not_stop_before_the_lease_ends",
    ),
    guard(
        "executors.token",
        "The server for processes of a cluster answers only those that know its token.",
        Replace('or not hmac.compare_digest(str(hello.get("token")), self.token)', ""),
        "worker/executors/test_cluster.py::test_server_answers_only_processes_that_know_its_token",
    ),
    guard(
        "executors.one_start",
        "A launch that an engine delivers twice starts once.",
        Condition("launch is None"),
        "worker/executors/test_cluster.py::test_launch_that_the_engine_delivers_twice_starts_once",
    ),
    guard(
        "executors.lost_after_lease",
        "An attempt whose process does not answer is lost when the lease of that process has ended.",
        Condition("False"),
        "worker/executors/test_cluster.py::test_frozen_process_is_lost_when_its_lease_has_ended",
    ),
    # --- workers
    guard(
        "workers.dead_worker_heartbeat",
        "The heartbeat of a worker declared dead is refused.",
        Replace("AND ended_at IS NULL", ""),
        "store/work/test_workers.py::test_heartbeat_returns_the_time_unless_the_worker_has_ended",
    ),
    guard(
        "workers.holder_stays_registered",
        "A silent worker that holds a task is not ended.",
        Remove(),
        "store/work/test_workers.py::test_silent_workers_without_tasks_are_ended",
    ),
    guard(
        "workers.one_alive_per_name",
        "At most one worker of a name is alive.",
        Replace("UNIQUE", ""),
        "races/test_task_guards.py::test_worker_name_has_one_live_process",
        schema="workers_one_alive_per_name",
    ),
    guard(
        "workers.name_reserved_by_lease",
        "The name of a silent worker stays reserved while one of its leases is live.",
        Replace('or before["leased_for"] is not None', ""),
        "store/work/test_workers.py::test_name_of_a_silent_worker_with_a_live_lease_is_not_free",
    ),
    guard(
        "workers.silence_is_no_proof",
        "Silence alone does not let a successor take tasks back at once.",
        Replace("and proven", ""),
        "store/work/test_workers.py::test_name_of_a_silent_worker_without_lease_is_free",
    ),
    guard(
        "workers.silent_worker_keeps_leases",
        "A worker ended because of its silence keeps its tasks until their leases expire.",
        Replace("<> workers.seen_at", "IS NOT NULL"),
        "store/work/test_workers.py::test_tasks_of_a_silent_worker_are_not_recovered_at_once",
    ),
    guard(
        "workers.silent_worker_ends_at_last_heartbeat",
        "A worker ended because of its silence is recorded with its last heartbeat as its end.",
        Replace("seen_at", "clock_timestamp()"),
        "store/work/test_workers.py::test_tasks_of_a_silent_worker_are_not_recovered_at_once",
        places=2,
    ),
    guard(
        "workers.name_lock_on_same_host",
        "The lock of a worker name proves a death only on the same host.",
        Replace("lock_folder == lock_folder_before and is_same_boot and holds_name_lock", "holds_name_lock"),
        "store/work/test_workers.py::test_name_lock_on_another_host_is_no_proof_of_end",
    ),
    guard(
        "workers.home_id",
        "Each home directory has its own id, even in containers with equal host names and paths.",
        Replace("#{_home_id(self._home)}", ""),
        "service/test_process_identity.py::test_worker_in_a_container_with_equal_host_and_path_is_not_ended",
    ),
    guard(
        "workers.exclusive_name_lock",
        "At most one process of a home folder has a worker name.",
        Replace("LOCK_EX", "LOCK_SH"),
        "races/test_uniqueness_races.py::test_worker_name_in_use_on_the_host_is_refused_until_its_process_is_killed",
    ),
    # --- worker
    guard(
        "worker.limited_claim_position",
        "After a claim under limits the worker does not search again from the beginning.",
        Remove(),
        "worker/test_limit_handoff.py::test_worker_with_blocked_limited_tasks_does_not_claim_in_a_loop",
    ),
    guard(
        "worker.children_die_with_it",
        "The child processes of a worker die with it.",
        Remove(),
        "races/test_stalled_workers.py::test_child_processes_of_a_killed_worker_end_soon",
    ),
    guard(
        "worker.stop_once",
        "A worker that drains asks code to stop once.",
        Condition("True"),
        "races/test_drain.py::test_cancelled_code_may_clean_up_during_drain",
    ),
    guard(
        "worker.exit_without_database",
        "A worker that is asked to stop ends although the database does not answer.",
        Remove(),
        "races/test_drain.py::test_worker_drains_while_the_database_is_unreachable",
    ),
    # --- watchdog
    guard(
        "watchdog.stop_before_lease_ends",
        "Code is stopped before its lease ends.",
        (Remove(), Condition("False")),
        "races/test_stalled_workers.py::test_disconnected_worker_stops_its_code_before_its_lease_expires",
        places=2,
    ),
    guard(
        "watchdog.exit_if_code_goes_on",
        "A worker whose code cannot be stopped in time ends its own process.",
        Remove(),
        "races/test_stalled_workers.py::test_worker_whose_code_cannot_be_stopped_in_time_exits",
    ),
    guard(
        "watchdog.abandoned_leases_expire",
        "The watchdog of a worker that was cancelled in its drain renews no lease.",
        Condition("False"),
        "worker/test_shutdown.py::test_worker_that_is_cancelled_while_it_drains_renews_no_lease_and_leaves_no_thread",
    ),
    guard(
        "watchdog.renewal_timeout",
        "A renewal without an answer is sent over another connection in time.",
        Replace("reply_timeout_seconds=max(self._renew_seconds, 1.0),", ""),
        "races/test_stalled_workers.py::test_unanswered_renewal_is_sent_over_another_connection_in_time",
    ),
    guard(
        "watchdog.no_renewal_after_give_up",
        "A run that was given up far beyond its time limit is not renewed.",
        Remove(),
        "worker/test_timeouts.py::test_manifest_run_that_does_not_stop_loses_its_lease",
    ),
    guard(
        "watchdog.give_up_by_holder",
        "Only the worker that holds a run gives it up.",
        (Remove(), Condition("$1::uuid IS NOT NULL")),
        "store/definitions/test_manifests.py::test_overrun_run_is_found_when_its_lease_has_expired",
        places=2,
    ),
    guard(
        "watchdog.stop_once",
        "The watchdog asks code to stop once.",
        Replace("and attempt.stop_reason is None", ""),
        "lifecycle/test_task_cancellation.py::test_job_in_cleanup_is_not_cancelled_again",
    ),
    # --- attempts
    guard(
        "attempts.expired_lease",
        "An attempt does not start when its lease has expired.",
        Condition("False"),
        "jobs/test_outcomes.py::test_attempt_with_expired_lease_never_runs",
    ),
    guard(
        "attempts.every_error_class",
        "An error of any class ends its attempt.",
        Replace("BaseException", "ZeroDivisionError"),
        "jobs/test_outcomes.py::test_error_with_broken_class_fails_the_attempt",
    ),
    guard(
        "attempts.unknown_job_is_not_an_attempt",
        "A task whose job the claiming process does not know is deferred without an attempt.",
        Condition("False"),
        "jobs/test_outcomes.py::test_unregistered_job_is_deferred_without_an_attempt",
    ),
    # --- isolation
    guard(
        "isolation.dead_child",
        "The death of a child process is noticed although a fork of it lives.",
        Replace("pidfd in ready or", ""),
        "jobs/test_process_pool.py::test_death_of_a_child_process_is_noticed_although_its_fork_lives",
    ),
    # --- chains
    guard(
        "chains.fence",
        "A chain step with an old fence is not recorded.",
        (Condition("given.fence IS NOT NULL"), Condition("$2::bigint IS NOT NULL")),
        "store/work/test_step_checkpoints.py::test_worker_without_the_task_records_no_checkpoint",
        places=2,
    ),
    guard(
        "chains.worker",
        "A worker that does not hold the task records no chain step.",
        (Condition("given.worker_id IS NOT NULL"), Condition("$3::uuid IS NOT NULL")),
        "store/work/test_step_checkpoints.py::test_worker_without_the_task_records_no_checkpoint",
        places=2,
    ),
    guard(
        "chains.expired_lease",
        "A worker whose lease has expired records no chain step.",
        Remove(),
        "store/work/test_step_checkpoints.py::test_worker_with_expired_lease_records_no_checkpoint",
        places=2,
    ),
    guard(
        "chains.row_lock",
        "The task of a chain stays with its worker while a step is recorded.",
        Remove(),
        "store/work/test_step_checkpoints.py::test_worker_that_loses_the_task_while_recording_records_no_checkpoint",
        places=2,
    ),
    guard(
        "chains.first_result",
        "The result of a chain step that was recorded first is kept.",
        Replace("chain_steps", "excluded"),
        "store/work/test_step_checkpoints.py::test_first_recorded_checkpoint_stays",
    ),
    guard(
        "chains.sleep_starts_once",
        "A sleep that has started is not started again.",
        Condition("$5::integer > 0"),
        "store/work/test_step_checkpoints.py::test_sleeps_of_a_step_use_one_row",
    ),
    guard(
        "chains.wait_for_interrupted_step",
        "An interrupted chain step is waited for, however often it is interrupted.",
        Replace("()", "(); raise"),
        "worker/test_chains.py::test_cancelled_plain_chain_step_keeps_its_slot_until_it_stops",
    ),
    guard(
        "chains.no_step_after_stop",
        "No chain step starts after the task was asked to stop.",
        Remove(),
        "worker/test_chains.py::test_chain_step_that_completes_despite_cancellation_is_stored",
    ),
    guard(
        "chains.readable_result",
        "A result that cannot be read back is not recorded.",
        Value("dumped"),
        "jobs/test_chains.py::test_chain_step_with_unstorable_result_fails_permanently",
    ),
    # --- database
    guard(
        "database.driver_errors",
        "Internal errors of the driver are retried over another connection.",
        Replace("asyncpg.InternalClientError,", ""),
        "postgres/test_database.py::test_statement_is_retried_on_another_connection_after_a_driver_failure",
    ),
    # --- migrations
    guard(
        "migrations.one_at_a_time",
        "Migrations are applied by one process at a time.",
        Value('"SELECT 1"'),
        "races/test_uniqueness_races.py::test_migrations_by_several_processes_are_applied_once",
    ),
    # --- embedded
    guard(
        "embedded.shared_hold",
        "A process that uses the embedded server keeps it running.",
        Value('embedded_supervisor.open_home_file(home, "holders")'),
        "postgres/test_embedded_server.py::test_processes_share_one_server",
        "postgres/test_embedded_server.py::test_fork_keeps_the_server_of_its_parent_running",
    ),
    guard(
        "embedded.exclusive_start",
        "One process at a time creates or starts the embedded server.",
        Replace("EXCLUSIVE", "SHARED"),
        "postgres/test_embedded_server.py::test_concurrent_holders_create_the_server_once",
    ),
    guard(
        "embedded.one_hold_per_app",
        "An app that is connected several times holds its embedded server once.",
        Condition("True"),
        "postgres/test_embedded_restart.py::test_concurrent_connects_of_an_app_hold_the_server_once",
    ),
    # --- live logs
    guard(
        "live_logs.attempts_per_worker",
        "A worker sends the logs of a limited number of attempts.",
        Condition("False"),
        "worker/test_live_logs.py::test_worker_sends_the_logs_of_a_limited_number_of_attempts",
    ),
    guard(
        "live_logs.characters_per_second",
        "A worker sends a limited number of characters per second of each log.",
        Condition("self._waiting"),
        "worker/test_live_logs.py::test_worker_leaves_out_lines_beyond_the_limit_and_a_reader_sees_the_gap",
    ),
    # --- bounds of what a worker holds
    guard(
        "worker.bounded_prefetch",
        "A worker prefetches a bounded number of tasks.",
        Replace(
            "min(max_count, int(self._ended_per_second * self._claim_seconds * 4))",
            "int(self._ended_per_second * self._claim_seconds * 4)",
        ),
        "worker/test_prefetch_bounds.py::test_worker_prefetches_at_most_three_claims",
    ),
    guard(
        "worker.bounded_backlog",
        "A worker whose outcomes are not written claims a bounded number of tasks.",
        Value("True"),
        "worker/test_prefetch_bounds.py::test_worker_claims_nothing_more_while_too_many_outcomes_are_not_written",
    ),
    # --- drained workers
    guard(
        "worker.drained_claims_nothing",
        "A drained worker claims no tasks.",
        Condition("False"),
        "worker/test_drain_requests.py::test_drained_worker_claims_nothing_and_finishes_what_runs",
    ),
    guard(
        "worker.drained_claims_no_standby",
        "A drained worker prefetches no tasks under a limit.",
        Condition("policy.is_limited and self._may_hold_more()"),
        "worker/test_drain_requests.py::test_drained_worker_prefetches_no_standby_tasks",
    ),
    guard(
        "worker.drained_claims_no_group",
        "A drained worker does not claim the next step group.",
        Condition("free_count <= 0 or self.stopping or policy.may_have_tasks"),
        "worker/test_drain_requests.py::test_drained_worker_does_not_claim_the_next_step_group",
    ),
)
