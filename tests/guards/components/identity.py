"""Guards of identity synchronisation."""

from __future__ import annotations

from tests.guards.guard import Condition, Guard, Remove, Replace, Value, guard

RULES = "identity/model/rules"
SYNC = "identity/model/sync"
CSV = "identity/connectors/test_csv_file.py"
LDAP = "identity/ldap"
SQL = "identity/sql"
SCIM = "identity/scim"

GUARDS: tuple[Guard, ...] = (
    # --- safety of deletions
    guard(
        "identity.guard_percentage",
        "A guard trips only above its percentage, and exactly above it.",
        Value("affected * 100 > 100 * total"),
        f"{SYNC}/test_guards_and_status.py::test_guard_trips_above_its_percentage_from_its_minimum",
    ),
    guard(
        "identity.guard_empty_source",
        "A source from which nothing at all is read is an error whatever the limits are.",
        Value("False"),
        f"{SYNC}/test_guards_and_status.py::test_empty_source_fails_whatever_the_limits_are",
    ),
    guard(
        "identity.guard_emptied",
        "A type or container that was emptied is held even if all deletions are allowed.",
        Value("False"),
        f"{SYNC}/test_guards_and_status.py::test_emptied_type_is_held_even_if_all_deletions_are_allowed",
    ),
    guard(
        "identity.only_own_objects_deleted",
        "Only objects that Tenuto provisioned, or that a rule owns, are deleted.",
        Value("True"),
        f"{SYNC}/test_outbound.py::test_object_that_tenuto_did_not_provision_is_never_deleted",
    ),
    guard(
        "identity.uncertain_create",
        "An object that may exist in the system is not forgotten, but deleted there.",
        Replace("and not pending.uncertain", ""),
        f"{SYNC}/test_outbound.py::test_object_that_was_never_sent_is_removed_without_an_export",
    ),
    guard(
        "identity.seen_objects_are_not_deleted",
        "An object that a delta reports as deleted and as existing is not deleted.",
        Value("[]"),
        f"{SQL}/test_sql_scenarios.py::test_delta_of_sql_keeps_a_person_with_an_ended_and_an_active_row",
    ),
    guard(
        "identity.delta_deletions_are_measured",
        "The deletions of a delta are compared with all objects as soon as the guard of deletions can trip.",
        Value("False"),
        "identity/scenarios/test_delta_scenarios.py"
        "::test_delta_import_counts_the_objects_only_if_its_deletions_can_trip_the_guard",
    ),
    guard(
        "identity.cleared_values_are_recorded",
        "Values that an import clears are recorded with its page: the guard counts them whatever becomes of the run.",
        Remove(),
        "identity/runs/test_safety.py::test_repeated_import_of_a_cleared_column_does_not_release_the_hold",
    ),
    guard(
        "identity.held_deletions_are_adopted",
        "What a delta found deleted and a guard holds is compared again together with what the next delta finds.",
        Remove(),
        "identity/runs/test_safety.py::test_held_deletions_of_a_delta_are_not_forgotten_by_the_next_one",
    ),
    guard(
        "identity.disabling_is_counted",
        "The guard of deletes counts and holds updates that disable.",
        Value("after"),
        f"{SYNC}/test_outbound.py::test_disable_sends_a_last_update_and_then_disconnects",
    ),
    guard(
        "identity.held_limits",
        "A delta does not let pass what a run with lower limits holds.",
        Replace("self._held_limits()", "self._system.guards(run.profile)"),
        "identity/runs/test_safety.py::test_delta_with_higher_limits_does_not_release_what_another_run_holds",
    ),
    guard(
        "identity.approved_hold",
        "An approval releases only the hold that was approved.",
        Replace("SQL.release_hold, system_number, str(run_id)", "SQL.clear_hold, system_number"),
        "identity/runs/test_safety.py::test_approval_does_not_release_the_hold_of_a_later_run",
    ),
    guard(
        "identity.deletions_of_attempts",
        "Immediate deletions of identities are limited over all attempts of a sync together.",
        Value("0"),
        "identity/runs/test_killed_guards.py::test_deletions_of_a_killed_sync_count_for_the_next_attempt",
    ),
    guard(
        "identity.due_deletions_of_held_systems",
        "Due deletions of a system on hold wait until a user approves.",
        Condition("(true)"),
        "identity/tasks/test_due_deletions.py::test_due_deletions_of_a_held_system_wait_while_others_are_made",
    ),
    guard(
        "identity.due_deletions_are_shared",
        "Due deletions of one system do not keep those of another one waiting.",
        Replace("d.rank, ", ""),
        "identity/tasks/test_due_deletions.py::test_due_deletions_of_one_system_do_not_delay_those_of_another",
    ),
    guard(
        "identity.due_again_after_lock",
        "A deletion that was cancelled meanwhile is not made, when there are no systems either.",
        Condition("identity is not None"),
        "identity/tasks/test_due_deletions.py::test_deletion_that_is_cancelled_while_housekeeping_waits_is_not_made",
    ),
    # --- recognition of unchanged objects
    guard(
        "identity.recognised_once",
        "An object that an earlier page contained is not recognised again: its anchor is a duplicate.",
        Condition("False"),
        "identity/runs/test_recognition.py::test_import_in_batches_gives_what_an_import_of_single_rows_gives",
    ),
    guard(
        "identity.recognised_repetition",
        "Equal rows of one page are duplicates and none of them is unchanged.",
        Condition("False"),
        "identity/runs/test_recognition.py::test_import_in_batches_gives_what_an_import_of_single_rows_gives",
    ),
    guard(
        "identity.recognised_and_different",
        "An object that a page contains unchanged and with other values is a duplicate.",
        Condition("False"),
        "identity/runs/test_recognition.py::test_import_in_batches_gives_what_an_import_of_single_rows_gives",
    ),
    # --- runs
    guard(
        "identity.run_fence",
        "A page of an attempt whose run another attempt has taken over is not written.",
        Condition("$2::bigint IS NOT NULL"),
        "identity/store/test_repository.py::test_page_of_an_attempt_with_a_smaller_fence_is_refused",
    ),
    guard(
        "identity.page_of_ended_run",
        "A page of a run that another attempt has ended as lost is not written.",
        Condition("true"),
        "identity/runs/test_run_lifecycle.py"
        "::test_a50_page_of_a_worker_that_has_not_noticed_the_loss_of_its_lease_is_refused",
    ),
    guard(
        "identity.run_of_open_task",
        "Only open runs whose task has ended are ended by others.",
        Replace("if each.task_id not in open_tasks", ""),
        "identity/runs/test_run_lifecycle.py::test_second_run_of_a_system_waits_and_names_the_run_it_waits_for",
    ),
    guard(
        "identity.begin_after_abandoned_run",
        "A run does not wait for an open run whose task has ended.",
        Value("()"),
        "identity/runs/test_abandoned_runs.py::test_run_begins_although_an_open_run_has_no_task_any_more",
    ),
    guard(
        "identity.runs_that_begin_together",
        "A run that begins at the same time as another one that excludes it waits for it.",
        Condition("True"),
        "identity/runs/test_run_lifecycle.py::test_a52_run_that_begins_together_with_another_one_waits_for_it",
    ),
    guard(
        "identity.housekeeping_ends_abandoned_runs",
        "Housekeeping ends open runs whose task has ended.",
        Remove(),
        "identity/runs/test_abandoned_runs.py::test_housekeeping_ends_runs_of_ended_tasks_and_the_doctor_names_them",
    ),
    guard(
        "identity.runs_of_lost_attempts",
        "A run ends those that lost attempts of its task left open.",
        Value("[]"),
        "identity/runs/test_abandoned_runs.py::test_sync_of_one_object_whose_worker_is_killed_is_repeated_to_its_end",
    ),
    guard(
        "identity.mark_stamp",
        "A mark that was set again since it was read is not deleted.",
        Condition("true"),
        "identity/store/test_repository.py::test_mark_that_is_set_again_since_it_was_read_stays",
    ),
    guard(
        "identity.skip_same_rules",
        "A full sync skips no object after a rule has changed.",
        Replace("and each.evaluated_rules == rules.rules_version", ""),
        f"{SYNC}/test_settled_objects.py::test_object_of_changed_rules_is_not_settled",
    ),
    guard(
        "identity.skip_same_joins",
        "A full sync skips no object if one that was joined beside it was removed while the last sync decided.",
        Replace("and each.evaluated_joins == key", ""),
        "identity/runs/test_skipped_objects.py::test_clear_beside_a_sync_page_leaves_no_identity_skipped",
    ),
    guard(
        "identity.skip_referring",
        "A full sync does not skip an object that refers to one that it has joined to another identity.",
        Replace("OR EXISTS (SELECT FROM evaluated_objects AS e WHERE e.object_id = r.object_id)", ""),
        "identity/runs/test_skipped_objects.py"
        "::test_reference_to_an_object_that_another_identity_took_over_is_not_skipped",
    ),
    guard(
        "identity.export_unchanged",
        "A sync decides a page again if a pending export has changed since it was read.",
        Condition("False"),
        "identity/runs/test_run_lifecycle.py::test_export_that_is_claimed_while_a_page_is_decided_gets_queued_changes",
    ),
    guard(
        "identity.preview_shared",
        "Two previews never use the shared scratch schema at the same time.",
        Value("True"),
        "identity/store/test_previews.py::test_shared_schema_is_used_by_one_preview_at_a_time",
    ),
    guard(
        "identity.pinned_join",
        "A join that a user decided is kept when the object leaves the scope.",
        Replace("and not each.pinned", ""),
        "identity/runs/test_manual_joins.py::test_pinned_join_is_kept_when_the_object_leaves_the_scope",
    ),
    guard(
        "identity.join_normal",
        "An object that is being created, or was deleted in its system, is not joined by a user.",
        Remove(),
        "identity/runs/test_manual_joins.py::test_object_that_was_deleted_in_its_system_is_not_joined",
    ),
    guard(
        "identity.preview_definitions_role",
        "A preview with definitions is refused to callers who may not apply definitions.",
        Condition("False"),
        "identity/api/test_routes.py::test_preview_of_changed_definitions_needs_the_role_that_applies_them",
    ),
    guard(
        "identity.page_reveals",
        "Pages show values of sensitive attributes to administrators only.",
        Replace("request.role >= Role.ADMIN", "True"),
        "identity/pages/test_identity_pages.py::test_identity_pages_hide_sensitive_values_from_roles_below_admin",
    ),
    guard(
        "identity.preview_definitions_hidden",
        "A preview with definitions shows no value to callers who may not see sensitive ones.",
        Condition("False"),
        "identity/api/test_routes.py::test_values_of_a_preview_with_definitions_are_shown_to_administrators_only",
    ),
    guard(
        "identity.preview_declared_sensitive",
        "Attributes that only the definitions of a preview declare as sensitive are hidden as well.",
        Remove(),
        "identity/api/test_routes.py::test_values_of_a_preview_with_definitions_are_shown_to_administrators_only",
    ),
    guard(
        "identity.preview_open_task",
        "Housekeeping does not end a preview whose task waits or runs.",
        Condition("true"),
        "identity/store/test_previews.py::test_expired_previews_and_abandoned_copies_are_dropped",
    ),
    guard(
        "identity.preview_shared_in_use",
        "Housekeeping does not empty the shared scratch schema while a preview uses it.",
        Value("True"),
        "identity/store/test_previews.py::test_copy_that_a_killed_worker_left_in_the_shared_schema_is_dropped",
    ),
    guard(
        "identity.forget_previews",
        "An erasure deletes previews also if no history is left, and running ones.",
        Value("0"),
        "identity/runs/test_manual_joins.py::test_forget_deletes_previews_of_an_identity_without_history",
        "identity/runs/test_manual_joins.py::test_forget_deletes_a_running_preview_of_an_unknown_identity",
    ),
    # --- matching
    guard(
        "identity.match_ambiguous",
        "An object that matches several metaverse objects is joined to none.",
        Condition("False"),
        f"{SYNC}/test_matcher.py::test_several_hits_are_ambiguous_and_stop_the_search",
    ),
    guard(
        "identity.match_joined_once",
        "A metaverse object is joined to one object of a system.",
        Condition("False"),
        f"{SYNC}/test_matcher.py::test_match_that_is_joined_to_another_object_is_reported",
    ),
    guard(
        "identity.match_blank",
        "A blank value never matches.",
        Condition("(key := fold_key(converted)) is not None"),
        f"{SYNC}/test_matcher.py::test_blank_value_has_no_key",
    ),
    guard(
        "identity.match_target_ambiguous",
        "A metaverse object that matches several unjoined objects of a target is joined to none.",
        Condition("False"),
        f"{SYNC}/test_matcher.py::test_metaverse_object_finds_its_unjoined_object",
    ),
    # --- flow
    guard(
        "identity.unresolved_references",
        "References that are not resolved yet hold back removals.",
        Condition("False"),
        f"{SYNC}/test_engine.py::test_unresolved_references_hold_back_removals",
    ),
    guard(
        "identity.frozen_values",
        "A scheduled deletion freezes the values of a metaverse object.",
        Condition("False"),
        f"{SYNC}/test_engine.py::test_scheduled_deletion_freezes_values",
    ),
    guard(
        "identity.failed_mapping_in",
        "A mapping that fails leaves the old value of its metaverse attribute.",
        Condition("False"),
        f"{SYNC}/test_engine.py::test_failed_expression_keeps_the_old_value_and_names_rule_expression_and_inputs",
    ),
    guard(
        "identity.failed_mapping_out",
        "A mapping that fails leaves the attribute of the target alone.",
        Condition("False"),
        f"{SYNC}/test_outbound.py::test_failed_mapping_leaves_the_attribute_and_its_pending_change_alone",
    ),
    guard(
        "identity.expression_size",
        "The size of a text is known before an expression builds it.",
        Condition("False"),
        f"{RULES}/test_expressions.py::test_result_and_intermediate_texts_are_bounded",
    ),
    # --- exports
    guard(
        "identity.unconfirmed_attempts",
        "A change that is never confirmed is not sent for ever.",
        Value("False"),
        f"{SYNC}/test_engine.py::test_change_that_is_never_confirmed_fails_after_five_attempts",
    ),
    guard(
        "identity.refused_attempts",
        "An export that is always refused is not sent for ever.",
        Value("False"),
        f"{SYNC}/test_pending.py::test_refused_export_is_retried_later_and_fails_after_five_attempts",
    ),
    # --- CSV files
    guard(
        "identity.csv_unchanged_while_read",
        "A file that changes while it is read fails the import.",
        Condition("False"),
        f"{CSV}::test_file_that_changes_while_it_is_read_is_an_error",
    ),
    guard(
        "identity.csv_regular_rows",
        "Rows that are blank, too short, too long or not text are not part of a batch.",
        Value("self._ahead_error is None"),
        f"{CSV}::test_batches_of_a_csv_file_have_the_objects_of_single_rows",
    ),
    guard(
        "identity.csv_written_file_unchanged",
        "A target that another program wrote between two batches is read again.",
        Replace("known[0] == state", "True"),
        f"{CSV}::test_csv_target_that_was_changed_between_two_writes_is_read_again",
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
    guard(
        "identity.ldap_log_purged",
        "A log of changes that does not reach back to the watermark leads to a full import.",
        Condition("False"),
        f"{LDAP}/test_reading.py::test_a26_log_that_does_not_reach_back_is_a_lost_watermark",
    ),
    guard(
        "identity.ldap_log_without_csn",
        "A log of changes that does not say how far it reaches leads to a full import, not to an empty delta.",
        Condition("False"),
        "identity/docs/test_delta_guide.py"
        "::test_accesslog_without_syncprov_on_the_log_is_refused_instead_of_finding_nothing",
    ),
    guard(
        "identity.ldap_moved_container",
        "A delta reports a container that was moved out of what is read: no source of changes names what is in it.",
        Condition("False"),
        f"{LDAP}/test_reading.py::test_delta_reports_a_container_that_is_moved_out_of_the_selection",
    ),
    guard(
        "identity.ldap_lost_rights",
        "An entry that the log does not report as deleted, and that the account may not read, is not deleted.",
        Value("None"),
        f"{LDAP}/test_unlisted_changes.py"
        "::test_delta_import_reports_an_object_that_it_may_not_read_any_more_instead_of_deleting_it",
    ),
    guard(
        "identity.moved_containers_are_emptied",
        "The objects of a container that was moved out of what is read are deleted, with the guards of deletions.",
        Remove(),
        f"{LDAP}/test_unlisted_changes.py"
        "::test_delta_import_deletes_what_is_in_a_container_that_was_moved_out_of_what_is_read",
    ),
    guard(
        "identity.unmoved_container",
        "Objects that are not found in a container that was not moved are not deleted by a delta.",
        Condition("False"),
        f"{LDAP}/test_unlisted_changes.py"
        "::test_delta_import_keeps_the_objects_of_a_container_that_it_may_not_read_any_more",
    ),
    guard(
        "identity.ldap_partial_search",
        "A search that the server cuts off fails the import.",
        Condition("True"),
        f"{LDAP}/test_reading.py::test_a28_paged_read_is_complete_and_a_size_limit_is_an_error",
    ),
    guard(
        "identity.ldap_anchor_asserted",
        "A change reaches the entry with the anchor, even if another entry has its address now.",
        Condition("True"),
        f"{LDAP}/test_writing.py::test_entry_that_was_renamed_by_an_administrator_is_found_by_its_anchor",
    ),
    guard(
        "identity.ldap_anchor_read",
        "Without assertions, the entry at the address is read before a change: another one may have it now.",
        Condition("reply.code == Code.SUCCESS"),
        f"{LDAP}/test_writing.py::test_export_changes_no_other_entry_that_has_the_address_of_a_deleted_one",
    ),
    guard(
        "identity.ldap_hidden_deletions",
        "A delta of Active Directory warns if the account may not read deleted objects.",
        Remove(),
        f"{LDAP}/test_active_directory.py::test_usn_delta_warns_without_the_right_to_read_deleted_objects",
    ),
    guard(
        "identity.foreign_object_at_the_address",
        "An import does not take a foreign object for the one that could not be created at its address.",
        Condition("false"),
        "identity/scenarios/test_export_scenarios.py::test_a47_foreign_entry_at_the_address_is_not_overwritten",
    ),
    guard(
        "identity.foreign_object_is_not_exported",
        "No export changes or deletes the foreign object that has the address of a create that was refused.",
        Value("False"),
        "identity/scenarios/test_foreign_entries.py::test_leaver_whose_worker_was_killed_deletes_no_foreign_object",
    ),
    guard(
        "identity.refused_create_is_not_deleted",
        "A delete that arrives during a create that is refused removes the object here and deletes none in the system.",
        Condition("False"),
        "identity/scenarios/test_foreign_entries.py"
        "::test_leaver_whose_create_is_refused_while_it_executes_deletes_no_foreign_object",
    ),
    guard(
        "identity.refused_create_is_uncertain",
        "A create that may have taken effect stays uncertain when its repetition is refused.",
        Value("replace(pending, uncertain=False)"),
        "identity/model/sync/test_pending.py"
        "::test_delete_queued_during_a_create_follows_it_only_if_the_create_may_have_taken_effect",
    ),
    guard(
        "identity.created_object_is_imported",
        "A created object takes the place of the one as which an import has stored it: their anchor is unique.",
        Value("[]"),
        "identity/scenarios/test_foreign_entries.py"
        "::test_created_object_that_was_imported_as_another_one_takes_its_place",
    ),
    guard(
        "identity.ldap_unreadable_is_not_deleted",
        "A delete of an entry that the account cannot identify any more is refused, not reported as done.",
        Condition("False"),
        f"{LDAP}/test_writing.py::test_entry_whose_anchor_the_account_may_not_read_is_not_reported_as_deleted",
    ),
    guard(
        "identity.ldap_unreadable_item",
        "An entry that the account may not read refuses its request, not the run.",
        Condition("False"),
        f"{LDAP}/test_writing.py::test_entry_whose_anchor_the_account_may_not_read_is_not_reported_as_deleted",
    ),
    guard(
        "identity.ldap_empty_password",
        "An empty password is refused, because a directory takes it as anonymous.",
        Condition("False"),
        f"{LDAP}/test_reading.py::test_wrong_and_empty_passwords_are_refused_without_their_value",
    ),
    guard(
        "identity.ldap_certificate",
        "The certificate of a directory is verified unless the settings say otherwise.",
        Condition("True"),
        f"{LDAP}/test_reading.py::test_tls_is_verified_by_default_with_ldaps_and_starttls",
    ),
    # --- SQL tables
    guard(
        "identity.sql_quoted_identifiers",
        "Names of tables and columns are quoted in every statement.",
        Value("'\"' + name + '\"'"),
        f"{SQL}/test_reading.py::test_sql_table_and_columns_with_hostile_names_are_quoted",
    ),
    guard(
        "identity.sql_read_only_file",
        "A source is opened in a way that cannot write its SQLite file.",
        Value('"rw"'),
        f"{SQL}/test_writing.py::test_read_only_settings_allow_no_writes",
    ),
    guard(
        "identity.sql_read_only_session",
        "A session of a PostgreSQL source cannot write.",
        Replace('"on" if self._read_only else "off"', '"off"'),
        f"{SQL}/test_writing.py::test_read_only_settings_allow_no_writes",
    ),
    guard(
        "identity.sql_no_foreign_password",
        "The password in the environment of the worker is not sent to a database that a definition names.",
        Replace('self._password or ""', "self._password"),
        f"{SQL}/test_sessions.py::test_password_in_the_environment_of_the_worker_is_not_sent_to_the_database",
    ),
    guard(
        "identity.sql_privileged_login",
        "A login that may change the tables of Tenuto or act as the server is refused.",
        Condition("False"),
        f"{SQL}/test_sessions.py::test_postgresql_login_that_may_change_tenuto_or_the_server_is_refused",
    ),
    guard(
        "identity.sql_tls_host_name",
        "The host name in the certificate of PostgreSQL is verified unless the address says otherwise.",
        Value("False"),
        f"{SQL}/test_sessions.py::test_certificate_and_host_name_of_postgresql_are_verified",
    ),
    guard(
        "identity.sql_idle_connection",
        "A connection that the server has ended since the last call is opened again.",
        Value("suppress(ZeroDivisionError)"),
        f"{SQL}/test_reading.py::test_postgresql_connection_that_ends_during_an_import_fails_it_and_an_idle_one_is_opened_again",
    ),
    guard(
        "identity.sql_lost_transaction",
        "A transaction whose connection has ended does not continue on another connection.",
        Condition("False"),
        f"{SQL}/test_sessions.py::test_postgresql_transaction_never_continues_on_another_connection",
    ),
    guard(
        "identity.sql_type_mismatch",
        "An attribute whose type does not fit its column fails the import before anything is read.",
        Condition("False"),
        f"{SQL}/test_reading.py::test_sql_column_types_are_discovered_and_a_mismatch_is_named",
    ),
    guard(
        "identity.sql_inclusive_watermark",
        "A delta by a change column reads the rows at the instant of the watermark again.",
        Replace(">=", ">"),
        f"{SQL}/test_reading.py::test_delta_of_sql_table_reads_ties_and_rows_without_a_time_again",
    ),
    guard(
        "identity.sql_settled_watermark",
        "A watermark is taken only if no open transaction can still commit an older change.",
        Value("False"),
        f"{SQL}/test_reading.py::test_postgresql_import_keeps_the_earlier_watermark_while_a_transaction_is_open",
    ),
    guard(
        "identity.sql_purged_changes",
        "A table of changes that does not reach back to the watermark leads to a full import.",
        Condition("False"),
        f"{SQL}/test_reading.py::test_delta_by_a_table_of_changes_needs_all_changes_since_the_watermark",
    ),
    guard(
        "identity.sql_changed_source",
        "A watermark of another database, table or query leads to a full import.",
        Condition("False"),
        f"{SQL}/test_reading.py::test_delta_after_the_source_of_a_sql_type_was_changed_needs_a_full_import",
    ),
    guard(
        "identity.sql_request_savepoint",
        "A row that the database refuses is undone alone.",
        Value('memoryview(b"")'),  # a context that does nothing
        f"{SQL}/test_writing.py::test_row_that_the_database_refuses_names_its_column_and_the_other_rows_are_written",
    ),
    guard(
        "identity.sql_foreign_row",
        "A create does not take over a row that exists with other values.",
        Condition("False"),
        f"{SQL}/test_conformance.py::test_sql_connector_passes_the_conformance_suite",
    ),
    guard(
        "identity.sql_row_in_error",
        "The message of a refused row has no values of other columns.",
        Value('("detail", "hint")'),
        f"{SQL}/test_writing.py::test_refusal_of_postgresql_shows_no_values_of_other_columns",
    ),
    guard(
        "identity.sql_busy",
        "A request that waited for a lock of another transaction does not count as an attempt.",
        Replace("RefusalKind.BUSY | RefusalKind.TIMEOUT", "RefusalKind.TIMEOUT"),
        f"{SQL}/test_writing.py::test_rows_that_another_postgresql_transaction_has_locked_are_busy_without_a_long_wait_each",
    ),
    guard(
        "identity.sql_unique_key",
        "An update of a key that several rows have changes none of them.",
        Condition("False"),
        f"{SQL}/test_writing.py::test_sql_key_that_is_not_unique_is_not_updated_or_deleted",
    ),
    # --- SCIM
    guard(
        "identity.scim_unencrypted",
        "A SCIM service is called without encryption only if the settings say so.",
        Condition("False"),
        f"{SCIM}/test_reading.py::test_scim_settings_that_cannot_work_are_refused",
    ),
    guard(
        "identity.scim_retry_after",
        "A request waits as long as a busy server asks.",
        Condition("False"),
        f"{SCIM}/test_reading.py::test_scim_read_waits_as_long_as_a_busy_server_asks",
    ),
    guard(
        "identity.delete_version",
        "A system whose definition has changed since the caller read it is not deleted.",
        Condition("False"),
        "identity/api/test_routes.py::test_system_that_has_changed_since_it_was_read_is_not_deleted",
    ),
    guard(
        "identity.cancelled_batch",
        "What a cancelled export has sent is recorded, so that the next export does not send it again.",
        Replace("although_cancelled=is_cancelled", "although_cancelled=False"),
        f"{SCIM}/test_scenarios.py::test_cancelled_scim_export_records_what_was_sent_and_sends_nothing_more",
    ),
    guard(
        "identity.scim_answer_limit",
        "An answer of unlimited size does not fill the memory of the worker.",
        Condition("False"),
        f"{SCIM}/test_reading.py::test_scim_answer_without_end_is_an_error",
    ),
    guard(
        "identity.scim_certificate",
        "The certificate of a SCIM service is verified against the certificates of the settings.",
        Condition("True"),
        f"{SCIM}/test_reading.py::test_scim_certificate_is_verified_by_default",
    ),
    guard(
        "identity.scim_shifted_page",
        "Pages that have shifted are read again from where nothing has changed.",
        Replace("max(1, start - self._size)", "start + 1"),
        f"{SCIM}/test_reading.py::test_scim_list_that_shifts_between_pages_misses_and_doubles_nothing",
    ),
    guard(
        "identity.scim_total",
        "A list with fewer resources than the server announces fails the import.",
        Replace("count == total", "count == total or count <= start"),
        f"{SCIM}/test_reading.py::test_a64_scim_list_that_is_not_complete_is_an_error",
    ),
    guard(
        "identity.scim_create_once",
        "An object that may exist is looked for before it is created.",
        Condition("False"),
        f"{SCIM}/test_writing.py::test_scim_group_is_created_once_although_the_server_accepts_two_of_a_name",
    ),
    guard(
        "identity.scim_bulk_reference",
        "A value that looks like a reference within a bulk request is data.",
        Value("True"),
        f"{SCIM}/test_writing.py::test_scim_bulk_request_carries_out_what_needs_one_request_for_each_object",
    ),
    guard(
        "identity.scim_if_match",
        "A change that was computed from a resource is refused if the resource has changed since.",
        Condition("True"),
        f"{SCIM}/test_writing.py::test_scim_change_of_another_program_in_between_is_not_overwritten",
    ),
)
