"""Guards of tasks, from enqueueing to the record of their attempts."""

from __future__ import annotations

from tests.guards.guard import Condition, Insert, Remove, Replace, Value, guard

SCOPES = "races/test_limit_scopes.py"
RATES = "store/work/test_rate_limits.py"

GUARDS = (
    # --- enqueue
    guard(
        "enqueue.existing_task",
        "Enqueueing a task whose id or unique key is taken creates nothing.",
        Remove(),
        "store/work/test_enqueue.py::test_unique_key_allows_one_open_task",
    ),
    guard(
        "enqueue.existing_task_in_function",
        "The SQL function creates no task if the id or unique key is taken.",
        Remove(),
        "store/work/test_enqueue_function.py::test_enqueue_function_is_usable_in_a_trigger",
        schema="ON CONFLICT DO NOTHING",
        places=2,
    ),
    guard(
        "enqueue.existing_tasks",
        "Enqueueing many tasks creates only those that do not exist yet.",
        Remove(),
        "store/work/test_enqueue.py::test_enqueue_creates_only_the_missing_tasks",
    ),
    guard(
        "enqueue.unique_key_is_written_alone",
        "A task with a unique key, which may have to wait for another transaction, is not written with other tasks.",
        Replace("task.unique_key is None", "True"),
        "races/test_gathered_enqueues.py::test_task_with_a_key_that_another_transaction_holds_delays_no_other_caller",
    ),
    guard(
        "enqueue.no_blind_retry",
        "The insert of a task is not repeated blindly after a lost reply, because the task may have ended meanwhile.",
        Replace("write_once", "write_all"),
        "races/test_lost_replies.py::test_task_that_ended_before_its_lost_reply_was_noticed_is_not_created_again",
    ),
    guard(
        "enqueue.ended_tasks",
        "Enqueueing many tasks again creates none that has ended already.",
        Remove(),
        "races/test_task_guards.py::test_finished_task_takes_no_key_from_a_task_enqueued_with_it",
    ),
    guard(
        "enqueue.no_blind_copy_retry",
        "COPY of many tasks is not repeated blindly after a lost reply.",
        Replace(", tries=1", ""),
        "races/test_lost_replies.py::test_many_tasks_that_ended_before_the_lost_reply_was_noticed_are_not_created_again",
    ),
    guard(
        "enqueue.one_open_task_per_key",
        "At most one open task has a unique key.",
        Replace("UNIQUE", ""),
        "races/test_task_guards.py::test_key_of_an_open_task_is_unique",
        schema="tasks_one_per_key",
    ),
    guard(
        "enqueue.one_task_per_id",
        "At most one task has an id.",
        Insert(
            "ALTER TABLE tenuto.tasks DROP CONSTRAINT tasks_pkey, ADD CONSTRAINT tasks_pkey UNIQUE (id, worker_id);"
        ),
        "races/test_task_guards.py::test_task_enqueued_twice_exists_once",
        schema="tasks_one_per_key",
    ),
    guard(
        "enqueue.freed_key",
        "A unique key that becomes free while a caller asks for it is used by the new task.",
        Value("True"),
        "races/test_uniqueness_races.py::test_key_released_during_an_enqueue_loses_no_task",
    ),
    guard(
        "enqueue.ended_meanwhile",
        "A task that ends while it is enqueued again is not created a second time.",
        Remove(),
        "store/work/test_enqueue.py::test_task_that_ends_during_a_repeated_enqueue_is_not_created_again",
    ),
    guard(
        "enqueue.notification_after_commit",
        "Workers are notified of a committed task whose statement left the notification to its caller.",
        Condition("False"),
        "races/test_gathered_enqueues.py::test_enqueue_beside_another_notifying_transaction_notifies_after_its_commit",
    ),
    guard(
        "enqueue.notification_before_close",
        "Closing a database sends the notifications of committed tasks first.",
        Condition("False"),
        "races/test_gathered_enqueues.py::test_closing_an_app_sends_its_notifications_first",
    ),
    guard(
        "enqueue.notification_of_transactions",
        "A transaction that creates tasks and other rows always notifies the workers itself.",
        Replace("ELSE true", "ELSE {may_notify}"),
        "races/test_gathered_enqueues.py::test_tasks_of_a_transaction_are_notified_beside_another_notifying_transaction",
    ),
    guard(
        "one_shots.notification_of_transactions",
        "A repeated request that creates a task in a transaction notifies the workers itself.",
        Replace("ELSE true", "ELSE {may_notify}"),
        "races/test_gathered_enqueues.py::test_tasks_of_a_transaction_are_notified_beside_another_notifying_transaction",
    ),
    guard(
        "enqueue.one_notifier_of_all_queues",
        "A statement that creates tasks of several queues notifies all their workers, or its caller does.",
        Condition("CASE WHEN $1 THEN {may_notify} ELSE true END"),
        "races/test_gathered_enqueues.py::test_statement_decides_once_for_all_its_queues_whether_it_notifies",
    ),
    guard(
        "one_shots.one_notifier_of_all_queues",
        "A statement that creates audited tasks of several queues notifies all their workers, or its caller does.",
        Condition("CASE WHEN $1 THEN {may_notify} ELSE true END"),
        "races/test_gathered_enqueues.py::test_statement_decides_once_for_all_its_queues_whether_it_notifies",
    ),
    # --- claim
    guard(
        "claim.skip_locked",
        "A claim skips tasks that another transaction has locked.",
        Replace("SKIP LOCKED", ""),
        "races/test_task_guards.py::test_claim_skips_tasks_locked_by_another_claim",
    ),
    guard(
        "claim.row_lock",
        "A claim locks the tasks it takes, so that no other claim takes them.",
        Remove(),
        "races/test_task_guards.py::test_task_claimed_by_one_transaction_is_not_claimed_by_another",
    ),
    guard(
        "claim.dead_worker",
        "A worker declared dead claims nothing.",
        Remove(),
        "races/test_task_guards.py::test_worker_declared_dead_claims_no_task",
        places=4,
    ),
    guard(
        "claim.known_handler",
        "A worker claims only tasks of jobs and step kinds that it knows.",
        Replace("THEN $9::jsonb ? free.name", "THEN $9::jsonb IS NOT NULL"),
        "worker/test_known_jobs.py::test_claim_takes_only_known_jobs_and_step_kinds",
    ),
    guard(
        "claim.known_handler_under_limits",
        "A worker claims only tasks of jobs and step kinds that it knows, under limits too.",
        Replace("THEN $8::jsonb ? free.name", "THEN $8::jsonb IS NOT NULL"),
        "worker/test_known_jobs.py::test_claim_takes_only_known_jobs_and_step_kinds",
        places=5,
    ),
    guard(
        "claim.new_fence",
        "Every claim increments the fence of the task.",
        Remove(),
        "store/work/test_claim.py::test_fence_grows_with_every_claim",
        places=4,
    ),
    guard(
        "claim.no_blind_retry",
        "A claim is not repeated blindly after a lost reply.",
        Replace("write_once", "write_all"),
        "races/test_lost_replies.py::test_tasks_of_a_lost_claim_return_when_their_lease_expires",
    ),
    guard(
        "claim.limited_queues",
        "A plain claim takes nothing from limited or paused queues.",
        Condition("false"),
        "store/work/test_claim.py::test_unlimited_claim_ignores_limited_and_paused_queues_and_limit_keys",
    ),
    guard(
        "claim.limited_claims_take_turns",
        "Claims under the same cap run one at a time.",
        Condition("false"),
        "races/test_task_guards.py::test_limited_claim_waits_for_the_previous_limited_claim",
    ),
    guard(
        "claim.uncapped_claims_are_waited_for",
        "A claim under a new cap waits for the claims that began without it.",
        Replace("pg_advisory_xact_lock_shared(kind, number)", "NULL"),
        f"{SCOPES}::test_claim_under_a_new_cap_waits_for_claims_that_began_without_it",
    ),
    guard(
        "claim.queue_lock_of_its_own",
        "Claims under limits of different queues, or of different groups, do not wait for each other.",
        Replace("{limit_lock_number} AS number", "hashtext(scope) & 63 AS number"),
        f"{SCOPES}::test_claims_under_caps_whose_former_buckets_were_equal_do_not_wait_for_each_other",
    ),
    *(
        guard(
            f"limits.unlocked_{scope}",
            f"Nothing is claimed under a cap of a {scope} that the transaction has not locked.",
            Condition("false"),
            f"{SCOPES}::test_claim_takes_no_task_under_an_unlocked_cap",
        )
        for scope in ("queue", "key")
    ),
    guard(
        "limits.unlocked_last_chance",
        "No last-chance task is claimed unless the transaction has locked all of them.",
        Condition("true"),
        f"{SCOPES}::test_claim_takes_no_task_under_an_unlocked_cap",
    ),
    *(
        guard(
            f"limits.unlocked_{scope}",
            f"No manifest run is claimed without the lock of its scope ({scope}).",
            Condition("false"),
            f"{SCOPES}::test_claim_takes_no_manifest_run_of_an_unlocked_scope",
        )
        for scope in ("manifest", "group", "manifests")
    ),
    *(
        guard(
            f"limits.new_cap_of_{scope}",
            f"A claim without a cap takes nothing if a cap ({scope}) was set after its locks.",
            mutation,
            f"{SCOPES}::test_claim_without_cap_takes_nothing_under_a_cap_set_after_its_locks",
        )
        for scope, mutation in (
            ("queue", Condition("true")),
            ("manifest", Condition("true")),
            ("group", Replace("(NOT enabled OR {group_is_capped})", "false")),
            ("all_manifests", Replace("(NOT enabled OR {group_is_capped})", "false")),
        )
    ),
    guard(
        "limits.unlocked_manifest_of_uncapped_claim",
        "A claim without a cap takes no run of a manifest that it has not locked.",
        Replace("ELSE false", "ELSE true"),
        f"{SCOPES}::test_claim_without_cap_takes_no_run_of_an_unlocked_scope",
    ),
    guard(
        "limits.unlocked_group_of_uncapped_claim",
        "A claim without a cap takes no run of a group that it has not locked.",
        Replace("WHEN free.limit_group IS NULL THEN", "WHEN true THEN"),
        f"{SCOPES}::test_claim_without_cap_takes_no_run_of_an_unlocked_scope",
    ),
    guard(
        "limits.urgent_before_equal_shares",
        "Equal shares of keys do not put less urgent tasks first.",
        Condition("true"),
        f"{SCOPES}::test_uncapped_claim_takes_what_a_claim_under_limits_takes",
    ),
    # --- rate limits and expiry
    guard(
        "rate_limits.key",
        "Of the tasks with a rate key no more start than it has tokens.",
        Condition("true"),
        f"{RATES}::test_claim_takes_as_many_tasks_as_the_key_has_tokens",
    ),
    guard(
        "rate_limits.queue",
        "Of the tasks of a queue no more start than its rate limit has tokens.",
        Remove(),
        f"{RATES}::test_rate_of_a_queue_applies_to_all_its_tasks",
    ),
    guard(
        "rate_limits.group",
        "Of the runs of a manifest group, or of all manifests, no more start than the rate limit has tokens.",
        Replace("(SELECT tokens", "(SELECT NULL::integer"),
        f"{RATES}::test_rate_of_a_group_applies_to_runs",
        places=2,
    ),
    guard(
        "rate_limits.unlocked_key",
        "No task is claimed under a rate key that the transaction has not locked.",
        Replace("THEN 0 ELSE tokens", "THEN tokens ELSE tokens"),
        f"{RATES}::test_claim_takes_no_task_of_an_unlocked_rate_key",
    ),
    guard(
        "rate_limits.tokens_are_spent",
        "A claim takes its tokens from the bucket.",
        Condition("false"),
        f"{RATES}::test_claim_takes_as_many_tasks_as_the_key_has_tokens",
        f"{RATES}::test_concurrent_claims_take_each_token_once",
    ),
    guard(
        "rate_limits.no_prefetch",
        "A claim under a rate limit takes no more tasks than the worker has free slots.",
        Replace("least($4::integer, $12::integer)", "greatest($4::integer, $12::integer)"),
        f"{RATES}::test_claim_under_a_rate_limit_takes_no_more_than_the_free_slots",
    ),
    guard(
        "rate_limits.no_standby",
        "No standby task takes over the limit slot of a task under a rate limit.",
        Replace("AND NOT EXISTS (SELECT FROM rates)", ""),
        f"{RATES}::test_task_under_a_rate_limit_has_no_limit_slot_for_standby_tasks",
    ),
    guard(
        "rate_limits.no_standby_with_key",
        "No task with a rate key is claimed as a standby task.",
        Condition("true"),
        f"{RATES}::test_standby_claim_takes_no_task_with_a_rate_key",
    ),
    guard(
        "rate_limits.parked_tasks_are_released",
        "Parked tasks are released when the next token comes.",
        Replace("release_at = next_at", "release_at = release_at"),
        f"{RATES}::test_parked_tasks_are_released_with_their_tokens_in_the_order_of_claims",
    ),
    guard(
        "expiry.running_task",
        "A task that runs does not expire.",
        Condition("true"),
        "store/work/test_expiry.py::test_running_task_is_not_listed_as_expired",
    ),
    guard(
        "expiry.waiting_step",
        "A step does not expire while it waits for an earlier group or for the end of a pause.",
        Condition("(true)"),
        "lifecycle/test_step_expiry.py::test_step_expires_after_the_start_of_its_group",
    ),
    guard(
        "expiry.start_of_group",
        "The expiry of a step counts from the start of its group.",
        Replace("expires_at = task.expires_at +", "expires_at = task.expires_at + 0 *"),
        "lifecycle/test_step_expiry.py::test_step_expires_after_the_start_of_its_group",
        places=2,
    ),
    guard(
        "expiry.start_of_step",
        "The expiry of a step with edges counts from its own start.",
        Replace("expires_at = task.expires_at +", "expires_at = task.expires_at + 0 *"),
        "lifecycle/test_step_expiry.py::test_step_with_edges_expires_after_its_own_start",
    ),
    guard(
        "expiry.paused_step",
        "A pause of the execution does not count for the expiry of its steps.",
        (
            Replace("expires_at - ($2::timestamptz - run_at)", "expires_at"),
            Replace("expires_at + ($2::timestamptz - run_at)", "expires_at"),
        ),
        "lifecycle/test_step_expiry.py::test_step_does_not_expire_while_its_execution_is_paused",
        "lifecycle/test_step_expiry.py::test_step_whose_group_starts_during_a_pause_expires_after_the_pause",
        places=2,
    ),
    guard(
        "expiry.step_held_after_its_attempt",
        "A pause does not count for the expiry of a step whose attempt fails meanwhile.",
        Replace("expires_at - (clock_timestamp() - run_at)", "expires_at"),
        "lifecycle/test_step_expiry.py::test_step_that_fails_during_a_pause_does_not_expire_before_its_end",
    ),
    guard(
        "expiry.repaired_step",
        "The time that a stuck step waited before its repair does not count for its expiry.",
        Replace("task.expires_at + (clock_timestamp() - task.run_at)", "task.expires_at"),
        "lifecycle/test_step_expiry.py::test_stuck_step_expires_after_its_repair",
    ),
    guard(
        "logical_time.retry",
        "A retry keeps the instant for which the task was planned.",
        Replace("{policy_with_due_instant}", "task.policy"),
        "scheduling/test_backfills.py::test_task_keeps_its_logical_time_in_retries_sleeps_and_after_its_dead_letter",
    ),
    guard(
        "logical_time.deferral",
        "A task that gave up its slot keeps the instant for which it was planned.",
        Replace("{policy_with_due_instant}", "task.policy"),
        "scheduling/test_backfills.py::test_task_keeps_its_logical_time_in_retries_sleeps_and_after_its_dead_letter",
    ),
    guard(
        "logical_time.dead_letter",
        "The retry of a dead letter has the instant for which the task was planned.",
        Replace("{policy_with_due_instant}", "task.policy"),
        "scheduling/test_backfills.py::test_task_keeps_its_logical_time_in_retries_sleeps_and_after_its_dead_letter",
    ),
    guard(
        "rate_limits.uncapped_claim",
        "The claim without caps takes no task with a rate limit.",
        Replace("CASE WHEN free.rate_key IS NULL THEN true ELSE false END", "true"),
        "races/test_limit_scopes.py::test_claim_without_cap_takes_no_run_with_a_rate_limit",
    ),
    guard(
        "expiry.claim",
        "No expired task is claimed.",
        Condition("true"),
        "store/work/test_expiry.py::test_expired_task_is_not_claimed",
        places=7,
    ),
    guard(
        "expiry.handed_back_or_lost",
        "A task that has begun and was handed back or lost does not expire.",
        Replace(
            "CASE WHEN outcome.reason IN ('handed_back', 'lost') THEN NULL ELSE task.expires_at END", "task.expires_at"
        ),
        "store/work/test_expiry.py::test_task_that_has_begun_does_not_expire",
    ),
    guard(
        "expiry.deferred_task",
        "A task that has begun and gave up its slot does not expire.",
        Replace(
            "CASE WHEN coalesce(task.began_at, deferral.started) IS NULL THEN task.expires_at END", "task.expires_at"
        ),
        "store/work/test_expiry.py::test_task_that_has_begun_does_not_expire",
    ),
    guard(
        "claim.stalled_limited_claim",
        "A session that stalls during a claim under limits is ended by the server.",
        Replace("set_config('idle_in_transaction_session_timeout', '2000', true),", ""),
        "races/test_task_guards.py::test_process_that_stalls_with_the_limit_lock_is_disconnected",
    ),
    guard(
        "claim.paused_queue",
        "Nothing is claimed from a paused queue.",
        Condition("false"),
        "store/work/test_claim.py::test_paused_queue_is_not_claimed_until_resumed",
    ),
    guard(
        "claim.promotion_lock",
        "A task that falls due is promoted by one transaction, and the others do not wait for it.",
        Remove(),
        "races/test_task_guards.py::test_due_task_is_promoted_once_and_no_worker_waits_for_it",
    ),
    guard(
        "claim.late_reply",
        "Tasks whose claim took most of the lease to arrive are released and not started.",
        Value("False"),
        "races/test_stalled_workers.py::test_claim_reply_delayed_for_most_of_the_lease_returns_the_tasks",
    ),
    guard(
        "claim.poll_under_load",
        "A fully loaded worker still polls its queues at the poll interval.",
        Value("False"),
        "races/test_database_outages.py::test_busy_worker_without_notification_prefers_urgent_tasks_within_a_poll",
    ),
    guard(
        "claim.one_last_chance_task",
        "One claim takes at most one task that is on its last chance.",
        Remove(),
        "maintenance/test_recovery.py::test_last_chance_tasks_run_one_at_a_time",
    ),
    guard(
        "claim.running_last_chance_task",
        "No task on its last chance is claimed while another one runs.",
        Replace("alone.last_chance", "false"),
        "maintenance/test_recovery.py::test_last_chance_tasks_run_one_at_a_time",
    ),
    # --- standby
    guard(
        "standby.counts_under_no_limit",
        "A standby task counts under no limit.",
        Remove(),
        "store/work/test_standby_tasks.py::test_standby_task_counts_under_no_limit",
    ),
    guard(
        "standby.batch_being_cancelled",
        "A standby claim locks the batch, so that a concurrent cancellation is seen.",
        Remove(),
        "store/work/test_standby_tasks.py::test_standby_claim_takes_nothing_of_a_batch_being_cancelled",
    ),
    guard(
        "standby.same_limit_key",
        "A standby task shares the limit key of the running task.",
        Remove(),
        "store/work/test_standby_tasks.py::test_standby_claim_takes_only_tasks_with_identical_limits",
    ),
    guard(
        "standby.last_chance_task",
        "A task on its last chance is not a standby task.",
        Remove(),
        "maintenance/test_recovery.py::test_last_chance_task_blocks_no_other_and_is_not_claimed_as_standby",
    ),
    guard(
        "standby.known_handler",
        "A standby task is one of a job or step kind that the worker knows.",
        Replace("THEN $9::jsonb ? picked.name", "THEN $9::jsonb IS NOT NULL"),
        "worker/test_known_jobs.py::test_standby_claim_takes_only_known_jobs",
    ),
    guard(
        "standby.behind_last_chance_task",
        "A task on its last chance does not keep the tasks behind it from running.",
        Remove(),
        "maintenance/test_recovery.py::test_last_chance_task_blocks_no_other_and_is_not_claimed_as_standby",
    ),
    guard(
        "standby.changed_limits",
        "No standby task is claimed until those of the former limits are released.",
        Replace("self._invalidated or", ""),
        "worker/test_limit_handoff.py::test_limit_handoff_claims_no_standby_tasks_after_changed_limits",
    ),
    guard(
        "standby.disabled_group",
        "No standby task is claimed for a disabled group.",
        Condition("true"),
        "store/work/test_standby_tasks.py::test_standby_claim_takes_nothing_for_paused_limits_or_ended_workers",
    ),
    # --- handoff
    guard(
        "handoff.accepted_outcome",
        "A slot under a limit is handed on only by an attempt whose outcome was accepted.",
        (Replace("ended", "outcome"), Replace("AND lease_until > clock_timestamp()", "")),
        "store/work/test_standby_tasks.py::test_late_outcome_passes_no_limit_slot_on",
        places=2,
    ),
    guard(
        "handoff.expired_lease",
        "An attempt whose lease has expired hands off no slot when it ends.",
        Replace("AND lease_until > clock_timestamp()", ""),
        "store/work/test_standby_tasks.py::test_task_without_live_lease_passes_no_limit_slot_on",
    ),
    guard(
        "handoff.expired_lease_of_retry",
        "An attempt whose lease has expired hands off no slot when it will be retried.",
        Remove(),
        "store/work/test_standby_tasks.py::test_task_without_live_lease_passes_no_limit_slot_on",
    ),
    guard(
        "handoff.changed_limits",
        "No slot is handed on after limits have changed.",
        Remove(),
        "worker/test_limit_handoff.py::test_changed_group_limit_applies_to_standby_tasks",
    ),
    guard(
        "handoff.claim_during_limit_change",
        "Standby tasks that were being claimed while limits changed are released.",
        Replace("True", "self.count > 0"),
        "worker/test_limit_handoff.py::test_limit_handoff_returns_standby_tasks_claimed_while_limits_changed",
    ),
    guard(
        "handoff.no_leftover_slots",
        "A slot without standby tasks is not kept in memory.",
        Remove(),
        "worker/test_limit_handoff.py::test_limit_handoff_forgets_slots_without_standby_tasks",
    ),
    # --- limits
    guard(
        "limits.key_counts_live_leases",
        "The limit of a key counts live leases only.",
        Replace("AND held.lease_until > clock_timestamp()", ""),
        "races/test_task_guards.py::test_limit_counts_only_unexpired_leases",
    ),
    guard(
        "limits.queue",
        "A claim takes no more of a queue than its limit allows.",
        Remove(),
        "races/test_claim_races.py::test_queue_and_key_limits_hold_over_three_worker_processes",
    ),
    guard(
        "limits.key",
        "A claim takes no more of a key than its limit allows.",
        Remove(),
        "store/work/test_claim.py::test_limit_key_is_never_exceeded_across_queues",
    ),
    guard(
        "limits.manifest",
        "No more tasks of a manifest are active than its limit.",
        Remove(),
        "store/work/test_concurrency_caps.py::test_manifest_cap_applies_across_its_batches",
    ),
    guard(
        "limits.group",
        "No more tasks of a group are active than its limit.",
        Remove(),
        "store/work/test_concurrency_caps.py::test_group_cap_is_never_exceeded",
    ),
    guard(
        "limits.all_manifests",
        "No more tasks of all manifests are active than the common limit.",
        Remove(),
        "store/work/test_concurrency_caps.py::test_cap_of_all_manifests_is_never_exceeded",
    ),
    guard(
        "limits.manifest_counts_live_leases",
        "The limit of all manifests counts live leases only.",
        Replace("AND lease_until > clock_timestamp()", ""),
        "store/work/test_concurrency_caps.py::test_expired_lease_does_not_count_under_caps",
    ),
    guard(
        "limits.disabled_group",
        "Nothing is claimed from a disabled group.",
        Condition("false"),
        "store/work/test_concurrency_caps.py::test_disabled_group_blocks_only_its_own_runs",
        places=2,
    ),
    guard(
        "limits.keys_take_turns",
        "Limit keys of equal priority take turns.",
        Replace("turn,", ""),
        "store/work/test_concurrency_caps.py::test_batches_of_equal_priority_share_claims",
        "store/work/test_concurrency_caps.py::test_small_batch_is_not_blocked_by_a_large_one_in_its_group",
        places=7,
    ),
    # --- renew
    guard(
        "renew.fence",
        "A renewal with an old fence changes nothing.",
        Remove(),
        "races/test_task_guards.py::test_renewal_with_stale_fence_changes_nothing",
    ),
    guard(
        "renew.worker",
        "A worker renews only its own tasks.",
        Condition("$1::uuid IS NOT NULL"),
        "races/test_task_guards.py::test_worker_renews_no_task_of_another_worker",
        places=2,
    ),
    guard(
        "renew.skip_locked",
        "A locked task does not delay the renewal of the others.",
        Replace("SKIP LOCKED", ""),
        "races/test_task_guards.py::test_long_lock_on_one_task_does_not_block_renewal_of_others",
    ),
    guard(
        "renew.locked_task_is_still_held",
        "A task that was not renewed because it was locked is still held by the worker.",
        Replace("attempt.task.id not in still_held and", ""),
        "worker/test_worker.py::test_locked_task_row_does_not_stop_renewal_of_other_leases",
    ),
    guard(
        "renew.held_fence",
        "A task with a newer fence is not reported as still held.",
        Replace("AND tasks.fence = held.fence", ""),
        "races/test_task_guards.py::test_task_with_new_fence_new_holder_or_expired_lease_is_no_longer_held",
    ),
    guard(
        "renew.expired_lease",
        "A lease that has expired is not renewed.",
        Remove(),
        "races/test_task_guards.py::test_expired_lease_is_not_renewed",
    ),
    # --- finish
    guard(
        "finish.fence_of_ended_task",
        "An outcome with an old fence ends nothing.",
        Remove(),
        "races/test_task_guards.py::test_outcome_with_stale_fence_changes_nothing",
    ),
    guard(
        "finish.fence_of_retried_task",
        "An outcome with an old fence retries nothing.",
        Remove(),
        "races/test_task_guards.py::test_outcome_with_stale_fence_changes_nothing",
    ),
    guard(
        "finish.worker",
        "An outcome of a worker that does not hold the task changes nothing.",
        Replace(
            "task.worker_id IS NOT DISTINCT FROM outcome.holder", "(task.worker_id IS NULL) = (outcome.holder IS NULL)"
        ),
        "races/test_task_guards.py::test_outcome_of_another_worker_changes_nothing_despite_equal_fence",
        places=2,
    ),
    guard(
        "finish.lock_of_retried_task",
        "Of two equal outcomes at once only one is written.",
        Remove(),
        "races/test_task_guards.py::test_only_one_of_two_equal_concurrent_outcomes_is_written",
        "races/test_cancel_races.py",
    ),
    guard(
        "finish.cancelled_task_is_not_retried",
        "A task that was asked to stop is not retried.",
        Remove(),
        "races/test_task_guards.py::test_task_with_cancel_request_is_not_retried",
    ),
    # --- release
    guard(
        "release.fence",
        "A release with an old fence changes nothing.",
        Remove(),
        "races/test_task_guards.py::test_return_to_queue_with_stale_fence_changes_nothing",
    ),
    guard(
        "release.worker",
        "A worker releases only its own tasks.",
        Condition("$1::uuid IS NOT NULL"),
        "races/test_task_guards.py::test_worker_returns_no_task_of_another_worker",
    ),
    guard(
        "release.cancelled_task",
        "A task that was asked to stop is not released to the queue.",
        Remove(),
        "races/test_task_guards.py::test_task_with_cancel_request_is_not_returned_to_queue",
        places=2,
    ),
    guard(
        "release.execution_lock",
        "Releasing a task locks its execution.",
        Remove(),
        "races/test_execution_guards.py::test_execution_stays_sound_under_two_concurrent_actions",
    ),
    guard(
        "release.paused_execution",
        "A task released in a paused execution waits.",
        Remove(),
        "races/test_execution_guards.py::test_execution_stays_sound_under_two_concurrent_actions",
    ),
    guard(
        "release.batch_lock",
        "Releasing a task locks its batch.",
        Remove(),
        "store/work/test_batches.py::test_item_being_returned_to_queue_during_a_pause_is_held",
    ),
    guard(
        "release.paused_batch",
        "A task released in a paused batch waits.",
        Remove(),
        "store/work/test_batches.py::test_unstarted_item_returns_to_waiting_in_a_paused_batch",
    ),
    # --- defer
    guard(
        "defer.fence",
        "Deferring a task with an old fence changes nothing.",
        Remove(),
        "races/test_execution_guards.py::test_deferral_with_stale_fence_or_other_worker_changes_nothing",
    ),
    guard(
        "defer.worker",
        "A worker defers only its own tasks.",
        Condition("$1::uuid IS NOT NULL"),
        "races/test_execution_guards.py::test_deferral_with_stale_fence_or_other_worker_changes_nothing",
    ),
    # --- cancel
    guard(
        "cancel.fence",
        "A request to stop reaches only the attempt it was meant for.",
        Replace("fence = $2", "$2::bigint IS NOT NULL"),
        "races/test_task_guards.py::test_cancel_request_of_an_earlier_attempt_does_not_affect_the_next",
    ),
    guard(
        "cancel.running_only",
        "Only running tasks are asked to stop.",
        Replace("AND state = 'running'", ""),
        "races/test_cancel_races.py",
    ),
    # --- recovery
    guard(
        "recovery.live_lease",
        "Recovery takes no task whose lease is live.",
        Replace("AND lease_until < clock_timestamp()", ""),
        "lifecycle/test_completion.py::test_recovery_locks_only_tasks_with_expired_leases",
    ),
    guard(
        "recovery.row_lock",
        "Recovery locks the tasks it reads.",
        Remove(),
        "races/test_task_guards.py::test_two_concurrent_recovery_sweeps_count_a_loss_once",
        "races/test_task_guards.py::test_task_locked_by_a_recovery_sweep_cannot_get_a_cancel_request_unnoticed",
    ),
    guard(
        "recovery.quarantine",
        "A task that has lost several workers is quarantined.",
        Replace("or losses >= MAX_WORKER_LOSSES", ""),
        "maintenance/test_recovery.py::test_poison_task_fails_at_its_third_loss",
    ),
    guard(
        "recovery.last_chance",
        "A task with one permitted loss left is marked, so that it runs alone.",
        Value("False"),
        "maintenance/test_recovery.py::test_last_chance_tasks_run_one_at_a_time",
    ),
    guard(
        "recovery.cancelled_task",
        "A lost task that was asked to stop ends as cancelled.",
        Condition("False"),
        "maintenance/test_recovery.py::test_lost_task_with_cancellation_request_ends_as_cancelled",
    ),
    guard(
        "recovery.executions_locked_first",
        "Recovery locks executions before their tasks.",
        Remove(),
        "races/test_execution_guards.py::test_step_recovered_as_lost_and_finishing_step_start_the_next_group_once",
    ),
    guard(
        "recovery.batches_locked_first",
        "Recovery locks batches before their tasks.",
        Remove(),
        "races/test_dead_letter_races.py::test_recovery_locks_the_batch_before_its_lost_tasks",
    ),
    # --- tasks
    guard(
        "tasks.running_is_held",
        "A running task has a worker, a lease and a claim time.",
        Condition("(true)"),
        "races/test_task_guards.py::test_running_task_has_holder_lease_and_claim_time",
        schema="ADD CONSTRAINT tasks_running_means_held",
    ),
    guard(
        "tasks.first_attempt",
        "The first activity of a task has the id of the task.",
        Condition("(true)"),
        "store/work/test_enqueue.py::test_database_rejects_inconsistent_tasks",
        schema="tasks_first_attempt_is_the_task",
    ),
    # --- activities
    guard(
        "activities.refuse_change",
        "The trigger function of activities refuses every change outside of retention.",
        Condition("true"),
        "races/test_task_guards.py::test_activity_cannot_be_changed",
        schema="IF TG_OP = 'DELETE' AND current_setting('tenuto.retention', true) = 'on'",
    ),
    guard(
        "activities.row_trigger",
        "Updating or deleting an activity fires the trigger.",
        Replace("ROW", "ROW WHEN (false)"),
        "races/test_task_guards.py::test_activity_cannot_be_changed",
        schema="FOR EACH ROW EXECUTE FUNCTION tenuto.refuse_to_change_the_past",
    ),
    guard(
        "activities.truncate_trigger",
        "Truncating the activities fires the trigger.",
        Replace("EXECUTE", "WHEN (false) EXECUTE"),
        "store/work/test_activities.py::test_database_rejects_changes_of_activities",
        places=2,
        schema="FOR EACH STATEMENT EXECUTE FUNCTION tenuto.refuse_to_change_the_past",
    ),
    guard(
        "activities.truncate_trigger_of_partition",
        "Truncating a partition of the activities fires the trigger.",
        Replace("EXECUTE", "WHEN (false) EXECUTE"),
        "store/work/test_activities.py::test_database_rejects_changes_of_activities",
    ),
    # --- state_machine
    guard(
        "state_machine.one_open_task_per_key",
        "The state machine test notices a second open task of a unique key.",
        Replace("UNIQUE", ""),
        "state_machine/test_machine.py::test_state_machine_can_reach_every_outcome_and_decision",
        schema="tasks_one_per_key",
    ),
    guard(
        "state_machine.dead_worker",
        "The state machine test notices a claim of a dead worker.",
        Remove(),
        "state_machine/test_machine.py::test_state_machine_can_reach_every_outcome_and_decision",
        places=4,
    ),
    guard(
        "state_machine.new_fence",
        "The state machine test notices a claim that leaves the fence as it is.",
        Remove(),
        "state_machine/test_machine.py::test_state_machine_can_reach_every_outcome_and_decision",
        places=4,
    ),
)
