"""The 98 bad inputs every surface is tried with, and where each of them is tried.

`test_register` fails if one is tried nowhere, or if a test named here is not there. Cases that are one request or one
command stand in the tables beside this file and in that of `tests/api/test_bad_inputs.py`, which are counted by
themselves; `ELSEWHERE` names the tests that need more than that: a server that lies, a program, a tampered row.
"""

from __future__ import annotations

from collections.abc import Iterable

_GROUPS = {
    "Who asks, and by which route": (1, (
        "no header", "an empty bearer", "a key of somewhere else", "a revoked key", "an expired key",
        "a key in the query", "two Authorization headers", "a path that ends as an open one does",
        "dots, slashes, capitals, ;a=b in the path", "X-HTTP-Method-Override", "X-Forwarded-… spoofed",
        "X-Original-URL",
        "the id of another's thing", "a batch with one unknown id", "mass assignment", "HEAD, OPTIONS, TRACE",
    )),
    "From which page": (17, (
        "a form or text/plain from another site", "no Origin", "Origin: null", "login CSRF", "?next=//evil",
        "a stream from another origin", "a frame around it",
    )),
    "What is shown": (24, (
        "markup and templates as text", "ANSI, OSC 52, OSC 8", "right-to-left, zero width, homoglyphs",
        "SVG or HTML as output", "CRLF in a name", "a line of 10 MB", "</script> in JSON",
    )),
    "Tokens of others": (31, (
        "alg none", "HS256 with the public key", "wrong aud", "wrong iss", "expired, not yet valid", "replayed",
        "kid and jku that lead elsewhere", "the e-mail of an admin",
    )),
    "Where a call leads": (39, (
        "loopback", "link-local in every spelling", "user info and fragments", "a redirect to loopback", "rebinding",
        "other schemes", "zones and NAT64", "endless, slow, bombs, 10,000 headers", "a secret echoed",
        "its own API with its own key",
    )),
    "Programs": (49, (
        "shell characters in an argument", "arguments like options", "programs outside", "steering variables",
        "cmd.exe quoting", "PowerShell quoting", "too many arguments", "exchanged between check and run",
        "daemons, deaf ones, floods",
    )),
    "SQL": (58, (
        "'; DROP TABLE in every text", "ORDER BY (SELECT …)", "scripts that reach above their login",
        "SQLite that reaches beyond its file", "NUL, lone surrogates, invalid UTF-8", "% _ \\ in a search", "odd ids",
    )),
    "Directories": (65, (
        "filter characters", "DN characters", "a list or object for a text", "an empty password", "bad certificates",
        "referrals, too much of everything",
    )),
    "Files": (71, (
        "paths that lead out", "links, pipes, devices, folders", "odd names", "formulas in cells", "odd CSV",
        "a file that changes meanwhile", "bombs",
    )),
    "Payloads": (78, (
        "nested 100,000 deep", "NaN, Infinity, 5,000 digits, 1e999", "duplicate keys", "objects in disguise",
        "bodies without end", "absurd pages, limits, instants, zones", "regex bombs", "too many of everything, cycles",
        "5,000 open streams", "twin names", "an idempotency key used again for something else",
    )),
    "Time": (89, (
        "bad cron lines", "odd and unknown zones", "instants out of reach, negative delays",
        "hours that are skipped or come twice",
    )),
    "Secrets and audit": (93, (
        "odd values of secrets", "references to what is not there, nested ones", "rows exchanged, damaged, old keys",
        "a wrong or missing key file", "a trail tampered with", "a secret in an exception, a URL, an argv",
    )),
}  # fmt: skip

TITLES = {f"B{first + number}": title for first, titles in _GROUPS.values() for number, title in enumerate(titles)}

_API = "tests/api/test_bad_inputs.py"
_HTTP = "tests/steps/test_http_call.py"
_RUNS = "tests/steps/test_executable.py"
_SQL = "tests/steps/test_sql_scripts.py"
_SECRETS = "tests/operations/test_secrets.py"

COVERED_BY_TESTS: dict[str, tuple[str, ...]] = {
    "B3": ("tests/api/test_access.py::test_each_role_may_do_what_it_may_on_each_route_and_nothing_else",),
    "B4": (f"{_API}::test_a_key_that_has_expired_or_was_revoked_opens_nothing",
           "tests/api/test_events.py::test_a_revoked_key_cuts_the_line"),
    "B5": (f"{_API}::test_a_key_that_has_expired_or_was_revoked_opens_nothing",),
    "B21": ("tests/bad_inputs/test_bad_inputs.py"
            "::test_no_page_of_another_site_can_frame_it_sniff_it_or_take_what_it_shows_for_a_page",),
    "B23": ("tests/bad_inputs/test_bad_inputs.py"
            "::test_no_page_of_another_site_can_frame_it_sniff_it_or_take_what_it_shows_for_a_page",),
    "B27": ("tests/bad_inputs/test_bad_inputs.py"
            "::test_no_page_of_another_site_can_frame_it_sniff_it_or_take_what_it_shows_for_a_page",),
    "B24": (f"{_API}::test_hostile_text_is_shown_as_the_text_it_is",),
    "B25": ("tests/cli/test_commands.py::test_control_characters_in_data_do_not_reach_the_terminal",),
    "B26": (f"{_API}::test_hostile_text_is_shown_as_the_text_it_is",),
    "B28": (f"{_API}::test_hostile_text_is_shown_as_the_text_it_is",),
    "B29": ("tests/jobs/test_output_capture.py::test_one_endless_line_is_cut_in_its_middle",
            "tests/jobs/test_output_capture.py::test_printing_without_ever_ending_the_line_stays_within_the_cap"),
    "B30": (f"{_API}::test_hostile_text_is_shown_as_the_text_it_is",),
    "B39": (f"{_HTTP}::test_nothing_inside_is_called_unless_it_is_listed",),
    "B40": ("tests/steps/test_address_policy.py::test_what_is_not_public_is_closed",
            "tests/steps/test_address_policy.py::test_a_host_in_an_odd_spelling_is_refused"),
    "B41": (f"{_HTTP}::test_an_address_that_makes_no_sense_is_refused_when_it_is_given",),
    "B42": (f"{_HTTP}::test_redirects_are_followed_only_when_asked_and_each_place_is_checked",),
    "B43": (f"{_HTTP}::test_the_checked_address_is_dialled_whatever_the_name_says_next",),
    "B45": ("tests/steps/test_address_policy.py::test_an_address_in_another_wrapping_is_the_same_address",),
    "B46": (f"{_HTTP}::test_whatever_a_server_sends_time_and_memory_stay_bounded",),
    "B47": (f"{_HTTP}::test_headers_that_could_open_a_door_are_not_kept",
            f"{_HTTP}::test_secrets_go_out_in_headers_body_and_address_and_are_told_nowhere"),
    "B48": (f"{_HTTP}::test_nothing_inside_is_called_unless_it_is_listed",
            "tests/steps/test_address_policy.py::test_the_machines_own_addresses_are_closed_too"),
    "B49": (f"{_RUNS}::test_every_text_arrives_byte_for_byte_and_nothing_else_is_given",),
    "B50": (f"{_RUNS}::test_every_text_arrives_byte_for_byte_and_nothing_else_is_given",),
    "B51": (f"{_RUNS}::test_only_what_is_listed_may_be_run_and_no_link_leads_out",),
    "B53": (f"{_RUNS}::test_every_text_arrives_byte_for_byte_and_nothing_else_is_given",),
    "B54": ("tests/steps/test_powershell.py"
            "::test_the_text_of_a_script_is_run_from_a_file_of_its_own_with_every_argument_as_it_is",),
    "B55": (f"{_RUNS}::test_more_than_two_megabytes_of_arguments_are_refused",),
    "B56": (f"{_RUNS}::test_what_was_checked_is_what_runs_however_quickly_it_is_exchanged",),
    "B57": (f"{_RUNS}::test_what_it_leaves_running_ends_with_it_and_holds_nothing_up",
            f"{_RUNS}::test_a_flood_is_bounded_and_the_program_is_not_held_up_for_ever",
            "tests/races/test_program_kills.py"
            "::test_programs_and_all_they_started_are_gone_soon_after_their_worker"),
    "B60": (f"{_SQL}::test_a_script_runs_with_its_own_login_and_tells_rows_per_statement",
            f"{_SQL}::test_what_cannot_be_run_is_refused_by_name_and_field"),
    "B61": (f"{_SQL}::test_a_sqlite_file_is_worked_on_and_nothing_beyond_it",),
    "B67": (f"{_API}::test_a_number_is_not_taken_for_a_text_nor_a_text_for_a_key",),
    "B69": ("tests/steps/test_call_steps.py"
            "::test_certificates_are_verified_against_the_name_although_an_address_is_dialled",),
    "B71": (f"{_SQL}::test_the_files_of_steps_lie_in_a_folder_of_their_own_and_tenuto_s_are_out_of_reach",),
    "B72": (f"{_SQL}::test_the_files_of_steps_lie_in_a_folder_of_their_own_and_tenuto_s_are_out_of_reach",),
    "B75": ("tests/cli/test_batches.py::test_a_mistake_in_a_csv_file_is_told_by_its_line",),
    "B76": ("tests/bad_inputs/test_bad_inputs.py"
            "::test_a_batch_that_is_submitted_again_under_its_key_doubles_nothing",),
    "B77": (f"{_HTTP}::test_whatever_a_server_sends_time_and_memory_stay_bounded",
            "tests/definitions/test_document_parser.py::test_a_file_has_a_largest_size"),
    "B81": ("tests/definitions/test_document_parser.py::test_what_could_surprise_is_refused",
            "tests/definitions/test_document_parser.py::test_copies_made_by_aliases_are_counted"),
    "B82": ("tests/api/test_http_protocol.py::test_heads_and_bodies_are_bounded_in_size_and_time",),
    "B87": (f"{_API}::test_hostile_text_is_shown_as_the_text_it_is",),
    "B88": ("tests/api/test_requests.py::test_a_request_that_is_sent_twice_is_done_once_and_answered_alike",),
    "B92": (f"{_API}::test_zones_and_hours_that_do_not_exist_have_their_rule",
            "tests/model/triggers/test_clock_changes.py::"),
    "B93": (f"{_SECRETS}::test_values_and_names_that_cannot_be_kept_are_refused",
            "tests/jobs/test_redaction.py::test_a_value_is_found_in_every_form_it_takes"),
    "B95": (f"{_SECRETS}::test_rows_that_were_exchanged_damaged_or_sealed_by_another_key_are_refused_cleanly",
            "tests/test_secret_encryption.py::test_a_row_that_was_exchanged_damaged_or_cut_does_not_open"),
    "B96": ("tests/test_secret_encryption.py::", f"{_SECRETS}::test_without_a_key_nothing_is_kept_in_an_external_database"),
    "B97": ("tests/audit/test_audit_trail.py::test_every_tampering_is_found",),
    "B98": (f"{_SECRETS}::test_a_canary_is_found_nowhere",
            f"{_RUNS}::test_secrets_are_masked_in_whatever_it_leaves_behind"),
}  # fmt: skip

MENTIONED_IN_TESTS = ("B29", "B86")
"""Tried by tests of the web service that say so, whatever their names are."""


def find_missing(found: Iterable[str]) -> list[str]:
    """Which of them are tried nowhere, in order."""
    known = set(found)
    return [number for number in TITLES if number not in known]
