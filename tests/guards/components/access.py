"""Guards of access, the audit log, idempotent requests, one-shots, events and secrets."""

from __future__ import annotations

from tests.guards.guard import Condition, Remove, Replace, Value, guard

GUARDS = (
    guard(
        "history.kind_of_object",
        "The history of an object contains no changes of secrets or keys with the same name.",
        Condition("$1::text IS NOT NULL"),
        "operations/test_history.py::test_history_contains_only_changes_of_the_named_kind",
    ),
    # --- access
    guard(
        "access.step_override",
        "Overriding a step that is no job needs the permission to edit definitions.",
        Condition("False"),
        "api/test_overrides.py::test_operator_cannot_override_arguments_of_steps_other_than_jobs",
    ),
    guard(
        "auth.page_header",
        "A change by a browser session needs the header of our own pages.",
        Condition("True"),
        "web/test_login.py::test_change_by_a_session_needs_the_header_of_our_pages",
    ),
    guard(
        "web.rendering_of_these_objects",
        "A rendering is shared only by requests whose model is the one that it was made of.",
        Condition("entry is None"),
        "web/test_shared_renderings.py::test_parts_of_other_objects_are_rendered_again",
    ),
    guard(
        "web.rendering_for_this_viewer",
        "A rendering is shared only by viewers with the same role and preferences.",
        Replace("viewer, title,", "title,"),
        "web/test_shared_renderings.py::test_viewers_with_other_roles_and_zones_get_their_own_rendering",
    ),
    guard(
        "web.unshared_panels",
        "What an extension shows to one person is not shown to another.",
        Value("set[str]()"),
        "web/test_shared_renderings.py::test_panels_of_one_person_are_not_shown_to_another",
    ),
    guard(
        "web.action_role",
        "A button is enabled only for a role that may call its operation.",
        Condition("False"),
        "web/test_pages.py::test_actions_are_enabled_for_the_roles_of_their_operations",
    ),
    guard(
        "access.secret_in_one_shot",
        "Naming a secret in a one-shot needs the permission to edit definitions.",
        Condition("False"),
        "api/test_one_shots.py::test_one_shot_with_a_secret_requires_an_editor",
    ),
    guard(
        "access.secret_in_retry",
        "Naming a secret in another input of a retry needs the permission to edit definitions.",
        Condition("False"),
        "api/test_one_shots.py::test_retry_with_a_secret_in_the_input_requires_an_editor",
    ),
    guard(
        "access.idle_upload_ends_with_key",
        "An idle upload ends when its API key is revoked.",
        Replace("_AUTHORIZATION_CHECK_SECONDS", "None"),
        "api/test_routes.py::test_idle_batch_upload_ends_when_its_key_is_revoked",
    ),
    guard(
        "access.upload_ends_with_key",
        "An upload ends when its API key is revoked.",
        Condition("False"),
        "api/test_routes.py::test_batch_upload_ends_when_its_key_is_revoked",
    ),
    guard(
        "extension.route_without_role",
        "A route of an extension that declares no role is not mounted.",
        Condition("False"),
        "extension/test_extension_routes.py::test_unusable_router_is_left_out_and_named",
    ),
    # --- sessions, invitations, proxy login
    guard(
        "auth.only_bearer",
        "Authorization of another scheme than Bearer is not taken for a failed key.",
        Value('token.strip() if scheme.lower() == "bearer" else headers[0] if headers else None'),
        "api/test_proxy_login.py::test_other_schemes_of_authorization_are_ignored",
    ),
    guard(
        "restore.no_commands",
        "The script of a backup cannot run programs by commands of psql.",
        Remove(),
        "operations/admin/test_backups.py::test_script_of_a_backup_runs_no_programs",
    ),
    guard(
        "restore.plain_instead_of_encrypted",
        "A plain file is not restored in place of an encrypted backup.",
        Condition("False"),
        "operations/admin/test_backups.py::test_plain_backup_is_refused_if_a_passphrase_is_given",
    ),
    guard(
        "restore.sessions_end",
        "Sessions and login links that ended after a backup do not come back with it.",
        Value("0"),
        "operations/admin/test_backups.py::test_restore_brings_no_ended_access_back",
    ),
    guard(
        "restore.invitations_end",
        "Invitations that ended after a backup do not come back with it.",
        Value("0"),
        "operations/admin/test_backups.py::test_restore_brings_no_ended_access_back",
    ),
    guard(
        "sessions.latest_end",
        "Use does not prolong a session beyond its latest end.",
        Replace(
            "least(clock_timestamp() + $2::interval, coalesce(ends_at, expires_at))", "clock_timestamp() + $2::interval"
        ),
        "store/test_sessions_and_invitations.py::test_session_is_prolonged_by_use_up_to_its_latest_end",
    ),
    guard(
        "sessions.ended_session_is_not_prolonged",
        "A session whose idle time is over is not prolonged.",
        Remove(),
        "store/test_sessions_and_invitations.py::test_expired_session_is_not_prolonged",
    ),
    guard(
        "sessions.own_session",
        "A caller without the role admin ends only sessions of the own key.",
        Remove(),
        "api/test_people.py::test_callers_list_and_end_their_own_sessions_only",
    ),
    guard(
        "invitations.accepted_once",
        "An invitation is accepted once.",
        Remove(),
        "store/test_sessions_and_invitations.py::test_invitation_is_accepted_once_by_concurrent_requests",
    ),
    guard(
        "invitations.revoked",
        "A revoked invitation gives no access.",
        Remove(),
        "store/test_sessions_and_invitations.py::test_revoked_and_expired_invitations_give_no_access",
    ),
    guard(
        "invitations.expired",
        "An expired invitation gives no access.",
        Remove(),
        "store/test_sessions_and_invitations.py::test_revoked_and_expired_invitations_give_no_access",
    ),
    guard(
        "invitations.end_with_expired_inviter",
        "Open invitations end when the key of the inviter expires.",
        Condition("false"),
        "store/test_sessions_and_invitations.py::test_invitation_ends_when_the_key_of_the_inviter_expires",
    ),
    guard(
        "invitations.end_with_inviter",
        "Open invitations end with the key of the inviter.",
        Replace("inviter_id = $1::uuid::text", "$1::uuid IS NULL"),
        "store/test_sessions_and_invitations.py::test_invitations_end_with_the_key_of_the_inviter",
    ),
    guard(
        "proxy_login.trusted_address",
        "The user header counts only if a trusted proxy sends it.",
        Replace("if self._is_trusted(scope) else None", ""),
        "api/test_proxy_login.py::test_user_header_counts_only_from_a_trusted_address",
    ),
    guard(
        "proxy_login.one_user",
        "A request with two user headers names no user.",
        Condition("not users"),
        "api/test_proxy_login.py::test_ambiguous_or_unusable_user_headers_name_no_user",
    ),
    guard(
        "proxy_login.cross_site",
        "A page of another site cannot act as the user of a proxy.",
        Replace("refuse_cross_site(request)", "pass"),
        "api/test_proxy_login.py::test_user_of_a_proxy_is_protected_from_other_sites",
    ),
    guard(
        "extension.panel_role",
        "A panel of an extension is shown to the role that it requires only.",
        Replace("view.viewer.role >= (panel.role or Role.VIEWER)", "True"),
        "web/test_extension_pages.py::test_panels_that_fail_are_cards_that_name_the_extension",
    ),
    guard(
        "extension.panel_time",
        "A page waits for panels of extensions for a short time only.",
        Replace("PANEL_SECONDS", "60.0"),
        "web/test_extension_pages.py::test_panels_that_fail_are_cards_that_name_the_extension",
    ),
    # --- api_keys
    guard(
        "api_keys.last_admin",
        "The last usable admin key is revoked only on explicit request.",
        Condition("False"),
        "store/test_api_keys.py::test_last_admin_key_is_revoked_only_on_explicit_request",
    ),
    guard(
        "api_keys.admins_are_locked",
        "Two admin keys are not revoked at once.",
        Replace("FOR UPDATE", ""),
        "store/test_api_keys.py::test_concurrent_revocation_of_the_last_admin_keys_is_refused_once",
    ),
    guard(
        "api_keys.revoked_key_is_not_replaced",
        "A key that was revoked meanwhile is not rotated.",
        Replace(
            "not await revoke_key(connection, old_id, new.by)", "await revoke_key(connection, old_id, new.by) is None"
        ),
        "store/test_api_keys.py::test_key_that_is_revoked_while_it_is_rotated_is_not_replaced",
    ),
    guard(
        "api_keys.revoked",
        "A revoked API key gives no access.",
        Remove(),
        "store/test_api_keys.py::test_revoked_key_and_its_sessions_end_within_a_second",
    ),
    guard(
        "api_keys.expired",
        "An expired API key gives no access.",
        Remove(),
        "store/test_api_keys.py::test_key_and_its_sessions_end_at_expiry",
    ),
    guard(
        "api_keys.short_cache",
        "A cached API key is forgotten within a second.",
        Replace("0.8", "60.0"),
        "store/test_api_keys.py::test_revoked_key_and_its_sessions_end_within_a_second",
    ),
    guard(
        "api_keys.whole_key",
        "The whole API key is compared, not only its prefix.",
        Condition("False"),
        "store/test_api_keys.py::test_invalid_api_key_is_rejected",
    ),
    guard(
        "rate_limit.only_failed_credentials",
        "A request without credentials is answered with 401, whatever happened at its address.",
        Condition("True"),
        "api/test_requests.py::test_rate_limiter_answers_401_to_requests_without_credentials",
    ),
    guard(
        "rate_limit.valid_key_of_an_attacked_address",
        "A valid key is admitted although guesses from the same address are refused.",
        Condition("False"),
        "api/test_requests.py::test_rate_limiter_admits_a_new_key_of_an_attacked_address",
    ),
    guard(
        "api_keys.link_works_once",
        "A login link opens one session.",
        Replace("link = NULL,", ""),
        "store/test_api_keys.py::test_login_link_creates_one_session_for_concurrent_requests",
    ),
    guard(
        "api_keys.link_expiry",
        "An expired login link opens no session.",
        Remove(),
        "store/test_api_keys.py::test_login_links_and_sessions_expire_and_are_deleted",
    ),
    guard(
        "api_keys.session_ends_with_key",
        "A session ends when its API key expires.",
        Remove(),
        "store/test_api_keys.py::test_key_and_its_sessions_end_at_expiry",
    ),
    guard(
        "api_keys.one_first_key",
        "The first API key is created once.",
        Remove(),
        "store/test_api_keys.py::test_first_start_creates_one_admin_key_file_for_the_owner",
    ),
    # --- audit
    guard(
        "audit.one_sealer",
        "One process at a time seals audit entries.",
        Replace("):", ") and False:"),
        "races/test_audit_sealer_races.py::test_two_concurrent_sealers_make_one_chain",
    ),
    guard(
        "audit.seal_covers_previous",
        "A seal covers the seal before it.",
        Replace("previous +", ""),
        "audit/test_audit_trail.py::test_audit_verifier_finds_tampering",
    ),
    guard(
        "audit.keyed_chain",
        "A chain that was sealed with a key is continued with a key.",
        Remove(),
        "audit/test_audit_trail.py::test_audit_sealer_never_continues_a_keyed_chain_without_a_key",
    ),
    guard(
        "audit.remembered_head",
        "The end of the chain is compared with the remembered head.",
        Remove(),
        "audit/test_audit_trail.py::test_audit_verifier_finds_tampering",
    ),
    guard(
        "audit.remembered_seals",
        "Seals are compared with the remembered ones.",
        Condition("False"),
        "audit/test_audit_trail.py::test_audit_verifier_finds_rebuilt_chain_by_checkpoints",
    ),
    guard(
        "audit.entry_is_announced",
        "Each audit entry is announced for sealing in its own transaction.",
        Replace("entry", "entry WHERE false"),
        "audit/test_audit_trail.py::test_audit_verifier_finds_tampering_before_sealing",
    ),
    guard(
        "audit.write_once",
        "An audit entry is not changed.",
        Replace("UPDATE OR", ""),
        "audit/test_audit_trail.py::test_audit_tables_refuse_changes",
        schema="CREATE TRIGGER written_once BEFORE UPDATE OR DELETE ON tenuto.audit",
    ),
    guard(
        "audit.no_entry_without_change",
        "An operation that changes nothing makes no audit entry.",
        Remove(),
        "cli/test_audit_entries.py::test_every_changing_command_has_one_audit_entry_with_its_action",
    ),
    guard(
        "audit.reads_are_read_only",
        "The queries of an audited operation cannot change anything.",
        Replace("readonly=True", ""),
        "audit/test_operation_records.py::test_query_of_an_audited_operation_refuses_every_change",
    ),
    guard(
        "audit.redaction",
        "Secrets are redacted in audit entries.",
        Replace("redact_sensitive_fields(value)", "value"),
        "audit/test_audit_trail.py::test_audit_entry_redacts_sensitive_fields",
    ),
    guard(
        "audit.export_ends_with_key",
        "An audit export ends when its API key is revoked.",
        Condition("False"),
        "api/test_long_responses.py::test_audit_export_is_aborted_when_its_key_is_revoked",
    ),
    # --- idempotency
    guard(
        "idempotency.one_request_per_key",
        "An idempotency key is used for one request.",
        Remove(),
        "api/test_idempotency.py::test_concurrently_used_idempotency_key_prevents_the_change",
    ),
    guard(
        "idempotency.done_elsewhere",
        "A request that another process has done meanwhile is rolled back.",
        Remove(),
        "api/test_idempotency.py::test_concurrently_used_idempotency_key_prevents_the_change",
    ),
    guard(
        "idempotency.own_resolution",
        "A replayed request recognises the dead letters it has resolved.",
        Replace("request_id or", ""),
        "api/test_idempotency.py::test_repeated_request_finishes_an_interrupted_one_and_returns_the_total",
    ),
    guard(
        "idempotency.later_failures",
        "A replayed request leaves out what has failed since.",
        Replace("is not None", "is not None and not before"),
        "api/test_idempotency.py::test_repeated_request_finishes_an_interrupted_one_and_returns_the_total",
    ),
    guard(
        "idempotency.past_instant",
        "A replayed one-shot is accepted although its instant has passed.",
        Condition("True"),
        "api/test_idempotency.py::test_repeated_one_shot_request_succeeds_after_its_instant_has_passed",
    ),
    # --- one_shots
    guard(
        "one_shots.cancel_all_locks_running_last",
        "Cancelling all one-shots locks the running ones last, so that their leases are renewed meanwhile.",
        Replace("AND worker_id IS NULL", ""),
        "races/test_task_guards.py::test_cancelling_all_one_shots_locks_running_tasks_last",
    ),
    guard(
        "one_shots.equal_ids",
        "Of two one-shots with one id in a request, the first is created.",
        Replace("AND allowed.turn = 1", ""),
        "store/work/test_one_shots.py::test_two_one_shots_with_one_id_create_and_audit_one",
    ),
    guard(
        "one_shots.replayed_request",
        "A replayed request creates no one-shot.",
        Replace("WHERE is_new", "WHERE true"),
        "store/work/test_one_shots.py::test_one_shot_that_ends_during_a_repeated_request_is_not_created_again",
    ),
    guard(
        "one_shots.ended_meanwhile",
        "A one-shot that ends while it is sent again is not created a second time.",
        Condition("False"),
        "races/test_lost_one_shot_replies.py::test_one_shot_ending_during_a_repeated_request_is_not_created_again",
    ),
    guard(
        "one_shots.ended_meanwhile_by_caller_id",
        "The same holds when the caller has chosen the id.",
        Replace("id is not None", "False"),
        "races/test_lost_one_shot_replies.py::test_one_shot_requested_again_by_id_while_ending_is_not_created_again",
    ),
    guard(
        "one_shots.existing_is_read",
        "A one-shot that exists is read and not sent again.",
        Replace("is_repeat and id is not None", "False"),
        "api/test_idempotency.py::test_repeated_one_shot_request_reads_the_existing_one_without_insert",
    ),
    guard(
        "one_shots.cancelled_is_not_listed",
        "A one-shot that was asked to stop is not in the list of open ones.",
        Replace("AND cancel_at IS NULL", ""),
        "races/test_lost_one_shot_replies.py::test_cancelling_all_one_shots_with_lost_reply_reports_the_cancelled_ones",
    ),
    guard(
        "one_shots.done_elsewhere",
        "A request that another process has done creates no one-shot.",
        Remove(),
        "races/test_lost_one_shot_replies.py::test_one_shot_with_lost_reply_is_created_and_audited_once",
    ),
    guard(
        "one_shots.cancel_all_after_lost_reply",
        "Cancelling all one-shots reports what it did before a lost reply.",
        Replace("-1", "0"),
        "races/test_lost_one_shot_replies.py::test_cancelling_all_one_shots_with_lost_reply_reports_the_cancelled_ones",
    ),
    guard(
        "one_shots.allowed_kinds",
        "A one-shot runs a program only if its kind is allowed for one-shots.",
        Replace("PROMPT_STEP_KINDS", "PROMPT_STEP_KINDS | {prompt_type}"),
        "operations/work/test_one_shots.py::test_invalid_one_shot_is_an_error_and_stores_nothing",
    ),
    # --- events
    guard(
        "events.late_commit",
        "An event that is committed late is still delivered.",
        Replace("- COMMIT_DELAY", ""),
        "observability/test_event_feed.py::test_change_detector_reports_late_commit_once",
    ),
    guard(
        "events.shared_query",
        "Clients that reconnect at the same time share one query.",
        Condition("True"),
        "observability/test_event_feed.py::test_event_feed_shares_catch_up_query_and_replays_recent_batches",
    ),
    guard(
        "events.stream_count",
        "Event streams are counted when they are granted.",
        Remove(),
        "api/test_event_stream.py::test_event_streams_beyond_the_limit_are_refused",
    ),
    guard(
        "long_polling.limit",
        "Requests that wait for the end of an object are limited.",
        Condition("False"),
        "api/test_long_polling.py::test_waiting_requests_are_limited",
    ),
    guard(
        "events.watched_objects",
        "The number of single objects that the event feed queries is limited.",
        Condition("False"),
        "observability/test_watched_objects.py::test_feed_refuses_to_watch_more_objects_than_its_limit",
    ),
    guard(
        "events.changes_since_load",
        "A stream begins with the changes that were detected after its page was loaded.",
        Replace("each.published_at", "each.at"),
        "observability/test_event_feed.py::test_subscription_begins_with_changes_detected_after_its_objects_were_loaded",
    ),
    guard(
        "events.clock_of_another_process",
        "A stream misses no change because the clock of another process rendered its page.",
        Replace("- CLOCK_DIFFERENCE", ""),
        "observability/test_event_feed.py::test_subscription_of_another_process_begins_with_changes_since_its_baseline",
    ),
    guard(
        "events.load_after_baseline",
        "The first event of a single object follows once its changes are detected.",
        Condition("False"),
        "observability/test_watched_objects.py::test_first_event_of_an_object_follows_the_subscription",
    ),
    # --- secrets
    guard(
        "secrets.bound_to_name",
        "An encrypted value is bound to the name of its secret.",
        Replace("name,", ""),
        "test_secret_encryption.py::test_changed_secret_row_cannot_be_decrypted",
    ),
    guard(
        "secrets.bound_to_version",
        "An encrypted value is bound to the version of its secret.",
        Replace(", version", ""),
        "test_secret_encryption.py::test_changed_secret_row_cannot_be_decrypted",
    ),
)
