"""Guards of identity synchronisation."""

from __future__ import annotations

from tests.guards.guard import Condition, Guard, Replace, Value, guard

MODEL = "identity/model"
CSV = "identity/connectors/test_csv_file.py"

GUARDS: tuple[Guard, ...] = (
    # --- safety of deletions
    guard(
        "identity.guard_percentage",
        "A guard trips only above its percentage, and exactly above it.",
        Value("affected * 100 > 100 * total"),
        f"{MODEL}/test_guards_and_status.py::test_guard_trips_above_its_percentage_from_its_minimum",
    ),
    guard(
        "identity.guard_empty_source",
        "A source from which nothing at all is read is an error whatever the limits are.",
        Value("False"),
        f"{MODEL}/test_guards_and_status.py::test_empty_source_fails_whatever_the_limits_are",
    ),
    guard(
        "identity.guard_emptied",
        "A type or container that was emptied is held even if all deletions are allowed.",
        Value("False"),
        f"{MODEL}/test_guards_and_status.py::test_emptied_type_is_held_even_if_all_deletions_are_allowed",
    ),
    guard(
        "identity.only_own_objects_deleted",
        "Only objects that Tenuto provisioned, or that a rule owns, are deleted.",
        Value("True"),
        f"{MODEL}/test_outbound.py::test_object_that_tenuto_did_not_provision_is_never_deleted",
    ),
    guard(
        "identity.uncertain_create",
        "An object that may exist in the system is not forgotten, but deleted there.",
        Replace("and not pending.uncertain", ""),
        f"{MODEL}/test_outbound.py::test_object_that_was_never_sent_is_removed_without_an_export",
    ),
    # --- runs
    guard(
        "identity.run_fence",
        "A page of an attempt whose run another attempt has taken over is not written.",
        Condition("$2::bigint IS NOT NULL"),
        "identity/store/test_repository.py::test_page_of_an_attempt_with_a_smaller_fence_is_refused",
    ),
    guard(
        "identity.mark_stamp",
        "A mark that was set again since it was read is not deleted.",
        Condition("true"),
        "identity/store/test_repository.py::test_mark_that_is_set_again_since_it_was_read_stays",
    ),
    guard(
        "identity.export_unchanged",
        "A sync decides a page again if a pending export has changed since it was read.",
        Condition("False"),
        "identity/runs/test_run_lifecycle.py::test_export_that_is_claimed_while_a_page_is_decided_gets_queued_changes",
    ),
    # --- matching
    guard(
        "identity.match_ambiguous",
        "An object that matches several metaverse objects is joined to none.",
        Condition("False"),
        f"{MODEL}/test_matcher.py::test_several_hits_are_ambiguous_and_stop_the_search",
    ),
    guard(
        "identity.match_joined_once",
        "A metaverse object is joined to one object of a system.",
        Condition("False"),
        f"{MODEL}/test_matcher.py::test_match_that_is_joined_to_another_object_is_reported",
    ),
    guard(
        "identity.match_blank",
        "A blank value never matches.",
        Condition("(key := fold_key(converted)) is not None"),
        f"{MODEL}/test_matcher.py::test_blank_value_has_no_key",
    ),
    guard(
        "identity.match_target_ambiguous",
        "A metaverse object that matches several unjoined objects of a target is joined to none.",
        Condition("False"),
        f"{MODEL}/test_matcher.py::test_metaverse_object_finds_its_unjoined_object",
    ),
    # --- flow
    guard(
        "identity.unresolved_references",
        "References that are not resolved yet hold back removals.",
        Condition("False"),
        f"{MODEL}/test_engine.py::test_unresolved_references_hold_back_removals",
    ),
    guard(
        "identity.frozen_values",
        "A scheduled deletion freezes the values of a metaverse object.",
        Condition("False"),
        f"{MODEL}/test_engine.py::test_scheduled_deletion_freezes_values",
    ),
    guard(
        "identity.failed_mapping_in",
        "A mapping that fails leaves the old value of its metaverse attribute.",
        Condition("False"),
        f"{MODEL}/test_engine.py::test_failed_expression_keeps_the_old_value_and_names_rule_expression_and_inputs",
    ),
    guard(
        "identity.failed_mapping_out",
        "A mapping that fails leaves the attribute of the target alone.",
        Condition("False"),
        f"{MODEL}/test_outbound.py::test_failed_mapping_leaves_the_attribute_and_its_pending_change_alone",
    ),
    guard(
        "identity.expression_size",
        "The size of a text is known before an expression builds it.",
        Condition("False"),
        f"{MODEL}/test_expressions.py::test_result_and_intermediate_texts_are_bounded",
    ),
    # --- exports
    guard(
        "identity.unconfirmed_attempts",
        "A change that is never confirmed is not sent for ever.",
        Value("False"),
        f"{MODEL}/test_engine.py::test_change_that_is_never_confirmed_fails_after_five_attempts",
    ),
    guard(
        "identity.refused_attempts",
        "An export that is always refused is not sent for ever.",
        Value("False"),
        f"{MODEL}/test_pending.py::test_refused_export_is_retried_later_and_fails_after_five_attempts",
    ),
    # --- CSV files
    guard(
        "identity.csv_unchanged_while_read",
        "A file that changes while it is read fails the import.",
        Condition("False"),
        f"{CSV}::test_file_that_changes_while_it_is_read_is_an_error",
    ),
    guard(
        "identity.csv_allowed_folders",
        "Files outside of the allowed folders are neither read nor written.",
        Condition("False"),
        f"{CSV}::test_path_outside_of_the_allowed_folders_is_refused",
    ),
    guard(
        "identity.csv_empty_source",
        "A file without rows fails the import.",
        Condition("False"),
        f"{CSV}::test_csv_file_without_rows_is_an_error",
    ),
    guard(
        "identity.csv_truncated_row",
        "A file that ends within a row fails the import.",
        Condition("False"),
        f"{CSV}::test_csv_file_cut_inside_the_last_row_is_truncated",
    ),
)
