"""Register of the 98 bad inputs that every interface is tested with, and the tests that cover them.

`test_every_bad_input_is_covered` fails if a bad input is not covered, or if a test named here does not exist. Single
requests and commands are in the tables of this package and of `tests/api/test_bad_inputs.py`, which are counted
automatically. `COVERED_BY_TESTS` names tests with a larger setup, for example a hostile server or a tampered row.
"""

from __future__ import annotations

from collections.abc import Iterable

_GROUPS = {
    "Authentication and routing": (1, (
        "no Authorization header", "empty bearer token", "key of another installation", "revoked key", "expired key",
        "key in the query string", "two Authorization headers", "path that ends like an open path",
        "dot segments, double slashes, capitals and ;a=b in the path", "X-HTTP-Method-Override",
        "spoofed X-Forwarded headers", "X-Original-URL",
        "id of another user's object", "selection with an unknown id", "mass assignment", "HEAD, OPTIONS, TRACE",
    )),
    "Cross-site requests": (17, (
        "form or text/plain from another site", "missing Origin", "Origin: null", "login CSRF", "?next=//evil",
        "event stream from another origin", "framing",
    )),
    "Output": (24, (
        "markup and template syntax", "ANSI, OSC 52, OSC 8", "right-to-left override, zero width, homoglyphs",
        "SVG or HTML as output", "CRLF in a name", "line of 10 MB", "</script> in JSON",
    )),
    "Foreign tokens": (31, (
        "JWT with alg none", "JWT with HS256 and the public key", "JWT with wrong aud", "JWT with wrong iss",
        "JWT expired or not yet valid", "replayed JWT", "JWT with kid and jku of another server",
        "JWT with the e-mail address of an admin",
    )),
    "HTTP calls": (39, (
        "loopback addresses", "link-local addresses in every spelling", "user info and fragments",
        "redirect to loopback", "DNS rebinding", "other schemes", "zone ids and NAT64",
        "endless, slow, compressed and 10,000-header responses", "echoed secret", "call of Tenuto's own API",
    )),
    "Programs": (49, (
        "shell characters in arguments", "arguments that look like options", "programs outside the allowed folders",
        "variables that control the loader", "cmd.exe quoting", "PowerShell quoting", "too many arguments",
        "file exchanged between check and start", "daemons, programs that ignore signals, output floods",
    )),
    "SQL": (58, (
        "'; DROP TABLE in every text", "ORDER BY (SELECT …)", "scripts that exceed the rights of their login",
        "SQLite scripts that open other files", "NUL, lone surrogates, invalid UTF-8",
        "wildcards % _ \\ in a search", "malformed ids",
    )),
    "Directories": (65, (
        "LDAP filter characters", "DN characters", "list or object instead of a text", "empty password",
        "invalid certificates", "referrals and oversized results",
    )),
    "Files": (71, (
        "paths outside the folder", "links, pipes, devices, folders", "unusual file names", "formulas in cells",
        "malformed CSV", "file that changes while it is read", "compression bombs",
    )),
    "Payloads": (78, (
        "100,000 nesting levels", "NaN, Infinity, 5,000 digits, 1e999", "duplicate keys", "serialised objects",
        "endless bodies", "out-of-range pages, limits, instants, zones", "regex bombs",
        "too many items, cycles", "5,000 open streams", "names that look equal", "reused idempotency key",
    )),
    "Time": (89, (
        "invalid cron lines", "unusual and unknown zones", "out-of-range instants, negative delays",
        "skipped and repeated hours",
    )),
    "Secrets and audit": (93, (
        "unusual secret values", "unknown and nested secret references", "exchanged and damaged rows, old keys",
        "wrong or missing key file", "tampered audit log", "secret in an exception, a URL, an argument list",
    )),
}  # fmt: skip

TITLES = {f"B{first + number}": title for first, titles in _GROUPS.values() for number, title in enumerate(titles)}

_API = "tests/api/test_bad_inputs.py"
_HTTP = "tests/steps/test_http_call.py"
_PROGRAM = "tests/steps/test_executable.py"
_SQL = "tests/steps/test_sql_scripts.py"
_SECRETS = "tests/operations/admin/test_secrets.py"

COVERED_BY_TESTS: dict[str, tuple[str, ...]] = {
    "B3": ("tests/api/test_access.py::test_each_role_can_use_exactly_the_routes_of_its_level",),
    "B4": (f"{_API}::test_api_refuses_expired_and_revoked_keys",
           "tests/api/test_event_stream.py::test_event_stream_ends_when_its_key_is_revoked"),
    "B5": (f"{_API}::test_api_refuses_expired_and_revoked_keys",),
    "B21": ("tests/bad_inputs/test_bad_inputs.py"
            "::test_api_responses_cannot_be_framed_sniffed_or_rendered_as_pages",),
    "B23": ("tests/bad_inputs/test_bad_inputs.py"
            "::test_api_responses_cannot_be_framed_sniffed_or_rendered_as_pages",),
    "B27": ("tests/bad_inputs/test_bad_inputs.py"
            "::test_api_responses_cannot_be_framed_sniffed_or_rendered_as_pages",),
    "B24": (f"{_API}::test_api_stores_and_shows_hostile_text_unchanged",),
    "B25": ("tests/cli/test_commands.py::test_control_characters_in_data_do_not_reach_the_terminal",),
    "B26": (f"{_API}::test_api_stores_and_shows_hostile_text_unchanged",),
    "B28": (f"{_API}::test_api_stores_and_shows_hostile_text_unchanged",),
    "B29": ("tests/jobs/test_output_capture.py::test_long_line_is_cut_in_its_middle",
            "tests/jobs/test_output_capture.py::test_endless_line_is_limited"),
    "B30": (f"{_API}::test_api_stores_and_shows_hostile_text_unchanged",),
    "B39": (f"{_HTTP}::test_http_call_to_an_internal_address_is_not_allowed",),
    "B40": ("tests/steps/test_address_policy.py::test_address_policy_blocks_addresses_that_are_not_public",
            "tests/steps/test_address_policy.py::test_host_in_unusual_spelling_is_rejected"),
    "B41": (f"{_HTTP}::test_invalid_http_call_argument_is_rejected",),
    "B42": (f"{_HTTP}::test_http_call_follows_redirects_on_request_and_checks_each_target",),
    "B43": (f"{_HTTP}::test_http_call_connects_to_the_checked_address",),
    "B45": ("tests/steps/test_address_policy.py::test_address_policy_unwraps_ipv4_addresses_in_ipv6",),
    "B46": (f"{_HTTP}::test_http_call_limits_time_and_memory_whatever_the_server_sends",),
    "B47": (f"{_HTTP}::test_http_call_does_not_store_headers_with_credentials",
            f"{_HTTP}::test_http_call_sends_secrets_and_does_not_show_them"),
    "B48": (f"{_HTTP}::test_http_call_to_an_internal_address_is_not_allowed",
            "tests/steps/test_address_policy.py::test_address_policy_blocks_addresses_of_this_machine"),
    "B49": (f"{_PROGRAM}::test_program_gets_exact_arguments_environment_and_stdin",),
    "B50": (f"{_PROGRAM}::test_program_gets_exact_arguments_environment_and_stdin",),
    "B51": (f"{_PROGRAM}::test_only_listed_programs_run_and_links_do_not_bypass_the_list",),
    "B53": (f"{_PROGRAM}::test_program_gets_exact_arguments_environment_and_stdin",),
    "B54": ("tests/steps/test_powershell.py"
            "::test_powershell_text_runs_from_a_private_file_with_exact_arguments",),
    "B55": (f"{_PROGRAM}::test_program_arguments_larger_than_the_input_limit_are_rejected",),
    "B56": (f"{_PROGRAM}::test_program_with_digest_runs_the_checked_content",),
    "B57": (f"{_PROGRAM}::test_processes_left_by_a_program_are_killed_at_its_end",
            f"{_PROGRAM}::test_much_output_of_a_program_is_limited",
            "tests/races/test_program_kills.py"
            "::test_programs_and_their_descendants_end_soon_after_their_worker"),
    "B60": (f"{_SQL}::test_sql_script_runs_with_its_login_and_reports_rows_per_statement",
            f"{_SQL}::test_invalid_sql_steps_are_rejected"),
    "B61": (f"{_SQL}::test_sqlite_script_cannot_reach_beyond_its_file",),
    "B67": (f"{_API}::test_api_refuses_values_of_the_wrong_type",),
    "B69": ("tests/steps/test_call_steps.py"
            "::test_http_call_verifies_the_certificate_against_the_host_name",),
    "B71": (f"{_SQL}::test_step_files_are_limited_to_their_folder_and_exclude_files_of_tenuto",),
    "B72": (f"{_SQL}::test_step_files_are_limited_to_their_folder_and_exclude_files_of_tenuto",),
    "B75": ("tests/cli/test_batches.py::test_row_reader_knows_the_line_of_an_error_in_csv",),
    "B76": ("tests/bad_inputs/test_bad_inputs.py"
            "::test_cli_batch_submitted_again_with_its_key_duplicates_nothing",),
    "B77": (f"{_HTTP}::test_http_call_limits_time_and_memory_whatever_the_server_sends",
            "tests/definitions/test_document_parser.py::test_document_that_is_too_large_is_rejected"),
    "B81": ("tests/definitions/test_document_parser.py::test_unsupported_yaml_is_rejected",
            "tests/definitions/test_document_parser.py::test_yaml_alias_copies_are_counted"),
    "B82": ("tests/api/test_http_protocol.py::test_web_server_bounds_heads_and_bodies_in_size_and_time",),
    "B87": (f"{_API}::test_api_stores_and_shows_hostile_text_unchanged",),
    "B88": ("tests/api/test_requests.py::test_repeated_request_with_idempotency_key_replays_the_response",),
    "B92": (f"{_API}::test_api_accepts_old_zone_names_and_previews_skipped_hours_once",
            "tests/model/triggers/test_clock_changes.py::"),
    "B93": (f"{_SECRETS}::test_invalid_secret_names_and_values_are_errors",
            "tests/jobs/test_redaction.py::test_redactor_finds_every_form_of_a_value"),
    "B95": (f"{_SECRETS}::test_exchanged_or_damaged_secret_rows_and_unknown_keys_are_errors",
            "tests/test_secret_encryption.py::test_changed_secret_row_cannot_be_decrypted"),
    "B96": ("tests/test_secret_encryption.py::", f"{_SECRETS}::test_secret_in_external_database_requires_a_master_key"),
    "B97": ("tests/audit/test_audit_trail.py::test_audit_verifier_finds_tampering",),
    "B98": (f"{_SECRETS}::test_revealed_secret_is_redacted_everywhere",
            f"{_PROGRAM}::test_secrets_are_redacted_in_output_error_and_log_of_a_program"),
}  # fmt: skip

MENTIONED_IN_TESTS = ("B29", "B86")
"""Covered by API tests whose source mentions the number."""


def find_missing(covered: Iterable[str]) -> list[str]:
    """Return the numbers that are not covered, in order."""
    known = set(covered)
    return [number for number in TITLES if number not in known]
