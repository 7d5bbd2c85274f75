"""Guards of housekeeping, partitions and retention."""

from __future__ import annotations

from tests.guards.guard import Condition, Remove, Replace, Value, guard

GUARDS = (
    # --- housekeeping
    guard(
        "housekeeping.own_services",
        "A process does not close its own services.",
        Replace("one.id for one in self._own", ""),
        "maintenance/test_housekeeping.py::test_suspended_process_does_not_end_its_own_services",
    ),
    guard(
        "housekeeping.partitions",
        "Each round creates the partitions of the coming months.",
        Remove(),
        "maintenance/test_housekeeping.py::test_housekeeping_cycle_creates_coming_partitions",
    ),
    guard(
        "housekeeping.short_round",
        "The number of batches in one round is bounded.",
        Replace("for _ in range(self._max_batches_per_cycle)", "while True"),
        "maintenance/test_housekeeping.py::test_retention_deletes_many_rows_in_small_batches",
    ),
    guard(
        "housekeeping.next_round",
        "A round that has not finished is followed by another one soon.",
        Value("True"),
        "maintenance/test_housekeeping.py::test_retention_deletes_many_rows_in_small_batches",
    ),
    guard(
        "housekeeping.retention_setting",
        "Records are kept as long as the setting says.",
        Replace("self._settings.retention_days", "1"),
        "maintenance/test_housekeeping.py::test_retention_drops_old_partitions_and_keeps_recent_ones",
    ),
    # --- partitions
    guard(
        "partitions.recent_record",
        "A partition with a recent record is kept.",
        Condition("False"),
        "store/test_partitions.py::test_old_partition_with_a_recent_activity_is_kept",
    ),
    guard(
        "partitions.lock_before_drop",
        "A partition is locked between the check and the drop.",
        Remove(),
        "store/test_partitions.py::test_activity_written_during_the_check_keeps_its_partition",
    ),
    guard(
        "partitions.dropped_by_another",
        "A partition that another process has dropped is skipped.",
        Remove(),
        "store/test_partitions.py::test_concurrent_processes_drop_each_partition_once",
    ),
    guard(
        "partitions.whole_periods",
        "Only partitions that are past as a whole are dropped.",
        Replace("found.end", "found.start"),
        "store/test_partitions.py::test_partitions_before_the_cutoff_are_dropped",
    ),
    guard(
        "partitions.records_in_default",
        "A month whose records are in the default partition gets no partition.",
        Condition("True"),
        "store/test_partitions.py::test_partition_is_not_created_over_rows_in_the_default_partition",
    ),
    guard(
        "partitions.replaced",
        "A coming partition that has records is not replaced when the period changes.",
        Condition("True"),
        "store/test_partitions.py"
        "::test_period_of_a_live_database_changes_at_the_end_of_the_month_without_gap_and_overlap",
    ),
    guard(
        "partitions.replaced_of_extension",
        "A coming partition of an extension that has records is not replaced when the period changes.",
        Condition("True"),
        "store/test_partitions.py::test_tables_of_extensions_change_their_period_like_activities",
    ),
    guard(
        "partitions.rows_in_default_of_extension",
        "A range of an extension whose rows are in the default partition gets no partition.",
        Condition("True"),
        "store/test_partitions.py::test_partition_of_an_extension_is_not_created_over_rows_in_the_default_partition",
    ),
    # --- retention
    guard(
        "retention.recent_activities",
        "Recently ended activities are kept in the default partition.",
        Condition("$1::timestamptz IS NOT NULL"),
        "store/test_partitions.py::test_default_partition_is_cleaned_in_batches_by_end",
    ),
    guard(
        "retention.dead_letter_with_activity",
        "A dead letter is kept as long as its activity.",
        Remove(),
        "store/work/test_dead_letters.py::test_resolved_dead_letters_are_deleted_with_their_activity",
    ),
    guard(
        "retention.steps_of_open_tasks",
        "Chain steps of open tasks are kept.",
        Remove(),
        "worker/test_chains.py::test_housekeeping_deletes_checkpoints_of_ended_tasks",
    ),
    guard(
        "retention.children_of_open_steps",
        "Executions started by open steps are kept.",
        Remove(),
        "store/work/test_executions.py::test_child_execution_of_an_open_step_is_not_deleted",
    ),
    guard(
        "retention.records_of_open_executions",
        "Records that an open execution still needs are kept.",
        Value("cutoff"),
        "maintenance/test_housekeeping.py::test_retention_keeps_activities_of_open_executions_and_logs_it",
    ),
    guard(
        "retention.batch_with_open_items",
        "A batch with open items is kept.",
        Remove(),
        "maintenance/test_housekeeping.py::test_retention_deletes_dead_letters_polls_checkpoints_and_batches",
    ),
    guard(
        "retention.batch_with_dead_letters",
        "A batch with dead letters is kept.",
        Remove(),
        "maintenance/test_housekeeping.py::test_retention_deletes_dead_letters_polls_checkpoints_and_batches",
    ),
    # --- rollups
    guard(
        "rollups.one_at_a_time",
        "Schedulers add activities to the rollups one after the other.",
        Remove(),
        "maintenance/test_activity_rollups.py::test_second_scheduler_leaves_the_counting_to_the_first",
    ),
    guard(
        "rollups.counted_once",
        "The activities of a transaction are added once.",
        Condition("true"),
        "maintenance/test_activity_rollups.py::test_rollups_count_an_activity_that_is_committed_late",
    ),
    guard(
        "rollups.late_commit",
        "The activities of an open transaction are added after its commit.",
        Replace("<> ALL ($4::bigint[])", "<> ALL (($4::bigint[])[1:0])"),
        "maintenance/test_activity_rollups.py::test_activity_committed_while_others_are_counted_is_left_for_the_next_cycle",
    ),
)
