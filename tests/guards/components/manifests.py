"""Guards of manifests, batches and dead letters."""

from __future__ import annotations

from tests.guards.guard import Condition, Insert, Remove, Replace, Value, guard

GUARDS = (
    # --- manifests
    guard(
        "manifests.one_open_task_per_item",
        "At most one open task of a manifest has an item key.",
        Replace("UNIQUE", ""),
        "store/definitions/test_manifests.py::test_database_rejects_a_second_open_run",
        schema="tasks_one_per_item",
    ),
    guard(
        "manifests.one_open_run",
        "At most one run of a manifest is open.",
        Replace("UNIQUE", ""),
        "store/definitions/test_manifests.py::test_database_rejects_a_second_open_run",
        schema="tasks_one_run_per_manifest",
    ),
    guard(
        "manifests.ended_run",
        "A run of a manifest that has ended is not started again.",
        Remove(),
        "store/definitions/test_manifests.py::test_ended_run_is_not_enqueued_again",
    ),
    guard(
        "manifests.key_of_refused_run",
        "The idempotency key of a run that is refused is not stored, so that the request can be sent again.",
        Condition("False"),
        "races/test_gathered_manifest_runs.py::test_key_of_a_refused_run_can_be_used_again",
    ),
    guard(
        "manifests.skip_locked",
        "A manager does not wait for manifests that another one has locked.",
        Replace("SKIP LOCKED", ""),
        "store/definitions/test_manifests.py::test_manifest_manager_skips_manifests_locked_by_another",
    ),
    guard(
        "manifests.row_lock",
        "A manager locks the manifests it decides on.",
        Remove(),
        "store/definitions/test_manifests.py::test_manifest_manager_skips_manifests_locked_by_another",
    ),
    guard(
        "manifests.open_dead_letter",
        "A manifest with an open dead letter does not run.",
        Condition("False"),
        "scheduling/test_manifest_manager.py::test_open_dead_letter_blocks_the_manifest_until_resolved",
    ),
    guard(
        "manifests.open_run",
        "A manifest with an open run does not run.",
        Condition("False"),
        "scheduling/test_manifest_manager.py::test_poll_skips_a_manifest_with_an_open_run",
    ),
    guard(
        "manifests.blockers_read_under_lock",
        "What blocks a manifest is read after the manifest is locked.",
        (
            Insert(
                'ids = [row["id"] for row in await connection.fetch("SELECT id FROM tenuto.manifests")]\n'
                "blockers = await manifests.load_run_blockers(connection, ids)"
            ),
            Remove(),
        ),
        "races/test_manifest_manager_races.py::test_manifest_manager_notices_a_run_that_fails_during_its_poll",
        places=2,
    ),
    guard(
        "manifests.locked_before_tasks",
        "Finishing a task locks its manifest before the task.",
        Remove(),
        "races/test_manifest_manager_races.py::test_manifest_runs_once_under_any_concurrent_action",
    ),
    guard(
        "manifests.dependency_changes_take_turns",
        "Dependencies between manifests are changed by one transaction at a time.",
        Replace("pg_advisory_xact_lock(hashtext('tenuto manifests run after others'))", "1"),
        "races/test_manifest_manager_races.py::test_two_concurrent_dependency_changes_create_no_cycle",
    ),
    # --- batches
    guard(
        "batches.paused_batch_is_not_claimed",
        "Nothing is claimed from a paused or cancelled batch.",
        Replace("THEN", "AND false THEN"),
        "store/work/test_batches.py::test_items_of_a_paused_or_cancelled_batch_are_not_claimed_before_they_are_held",
    ),
    guard(
        "batches.paused_batch_is_not_claimed_without_cap",
        "A claim without a cap takes nothing from a batch that was paused after its locks.",
        Condition("true"),
        "races/test_limit_scopes.py::test_claim_without_cap_takes_nothing_under_a_cap_set_after_its_locks",
    ),
    guard(
        "batches.retry_waits_while_paused",
        "A retry in a paused batch waits until the batch is resumed.",
        Remove(),
        "store/work/test_batches.py::test_retried_item_of_a_paused_batch_waits_and_keeps_its_due_time",
    ),
    guard(
        "batches.lock_while_items_are_written",
        "A batch is not paused while items of it are written.",
        Remove(),
        "races/test_dead_letter_races.py::test_concurrent_batch_operations_keep_sums_right_and_lose_no_item",
    ),
    guard(
        "batches.pause_waits_for_locked_items",
        "Pausing a batch waits for items that another transaction has locked.",
        (Remove(), Replace("UPDATE", "UPDATE SKIP LOCKED")),
        "store/work/test_batches.py::test_item_being_promoted_during_a_pause_is_held",
        places=2,
    ),
    guard(
        "batches.no_pause_after_resume",
        "Items are not held back in a batch that was resumed meanwhile.",
        Condition("False"),
        "races/test_dead_letter_races.py::test_concurrent_batch_operations_keep_sums_right_and_lose_no_item",
    ),
    guard(
        "batches.cancel_waits_for_limited_claims",
        "No claim under limits is in progress when a batch is cancelled.",
        Replace("pg_advisory_xact_lock({limit_lock_kind}, {limit_lock_number})", "1"),
        "races/test_limit_scopes.py::test_change_of_a_batch_waits_for_claims_without_cap",
    ),
    guard(
        "batches.pause_notifies_workers",
        "Pausing a batch notifies workers that hold standby tasks of it.",
        Replace(", pg_notify('tenuto', 'limits') AS paused", ""),
        "worker/test_limit_handoff.py::test_standby_items_of_a_paused_or_cancelled_batch_do_not_start",
    ),
    guard(
        "batches.cancel_notifies_workers",
        "Cancelling a batch notifies workers that hold standby tasks of it.",
        Replace(", pg_notify('tenuto', 'limits') AS cancelled", ""),
        "worker/test_limit_handoff.py::test_standby_items_of_a_paused_or_cancelled_batch_do_not_start",
    ),
    guard(
        "batches.part_is_added_once",
        "A part of a batch is added once.",
        Insert("known = 0"),
        "store/work/test_batches.py::test_batch_part_is_added_once_and_only_missing_items",
    ),
    guard(
        "batches.manifest_is_kept",
        "The manifest of a batch is not deleted while a part is added.",
        Condition("False"),
        "store/work/test_batches.py::test_batch_of_a_deleted_manifest_accepts_no_items",
    ),
    # --- dead_letters
    guard(
        "dead_letters.one_open_per_item",
        "At most one dead letter of an item is open.",
        Replace("UNIQUE", ""),
        "store/work/test_dead_letters.py::test_database_allows_one_open_dead_letter_per_item",
        schema="dead_letters_one_open",
    ),
    guard(
        "dead_letters.resolved_is_final",
        "A resolved dead letter is not changed.",
        Condition("(false)"),
        "store/work/test_dead_letters.py::test_database_rejects_changes_of_resolved_dead_letters",
        schema="WHEN (OLD.status <> 'awaiting_intervention')",
    ),
    guard(
        "dead_letters.one_resolution",
        "Of two resolutions of a dead letter, one takes effect.",
        Remove(),
        "store/work/test_dead_letters.py::test_database_rejects_changes_of_resolved_dead_letters",
    ),
    guard(
        "dead_letters.of_task_written_with_failure",
        "The transaction that ends a failed task writes its dead letter.",
        Remove(),
        "operations/work/test_task_retry.py::test_failed_task_becomes_a_dead_letter_and_is_retried",
    ),
    guard(
        "dead_letters.written_with_failure",
        "The dead letter is written in the transaction of the last failure.",
        Remove(),
        "store/work/test_dead_letters.py::test_only_the_final_failure_writes_a_dead_letter",
    ),
    guard(
        "dead_letters.row_lock",
        "A dead letter is locked while it is resolved.",
        Remove(),
        "races/test_dead_letter_races.py::test_concurrent_batch_operations_keep_sums_right_and_lose_no_item",
    ),
    guard(
        "dead_letters.manifest_lock_order",
        "Retrying dead letters locks their manifests in the common order.",
        Value("{id: found for id in external_ids if (found := await manifests.lock_manifest(connection, id))}"),
        "races/test_dead_letter_races.py::test_retrying_dead_letters_of_several_manifests_locks_in_the_order_of_finishing_runs",
    ),
)
