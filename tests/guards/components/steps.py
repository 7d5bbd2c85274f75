"""Guards of step kinds (programs, files, SQL scripts, HTTP calls, logs) and the redaction of secrets in their output."""

# ruff: noqa: E501 (names of tests are as long as they are)
from __future__ import annotations

from tests.guards.guard import Condition, Remove, Replace, Value, guard

GUARDS = (
    guard(
        "steps.output_names_no_secret",
        "The output of a step is never read as a secret reference by a later one.",
        Condition("False"),
        "model/definitions/test_step_expressions.py::test_output_that_looks_like_a_secret_reference_reveals_no_secret",
    ),
    # --- programs
    guard(
        "programs.adopt_orphans",
        "The supervisor of a program adopts the processes the program leaves behind.",
        Remove(),
        "steps/test_executable.py::test_processes_left_by_a_program_are_killed_at_its_end",
    ),
    guard(
        "programs.kill_descendants",
        "The supervisor kills all descendants when its worker is gone.",
        Remove(),
        "races/test_program_kills.py::test_programs_and_their_descendants_end_soon_after_their_worker",
    ),
    guard(
        "programs.kill_at_once",
        "A program is killed at once when the task is held by another worker.",
        Value('b"T"'),
        "steps/test_executable.py::test_stop_terminates_then_kills_the_program_and_its_processes",
    ),
    guard(
        "programs.links_out_of_allowlist",
        "No symbolic link leads out of the list of allowed programs.",
        Replace("real.", "Path(named)."),
        "steps/test_executable.py::test_only_listed_programs_run_and_links_do_not_bypass_the_list",
    ),
    guard(
        "programs.checked_copy",
        "The copy that was checked is the program that runs.",
        Replace("file = await", "await"),
        "steps/test_executable.py::test_program_with_digest_runs_the_checked_content",
    ),
    guard(
        "programs.sealed_copy",
        "A copy in memory cannot be changed.",
        Remove(),
        "steps/test_pinned_executable.py::test_pinned_copy_in_memory_cannot_be_changed",
    ),
    guard(
        "programs.read_only_copy",
        "A copy in a folder cannot be written by others.",
        Replace("0o500", "0o755"),
        "steps/test_pinned_executable.py::test_pinned_copy_in_a_folder_is_executable_by_its_owner_only",
    ),
    guard(
        "programs.exclusive_copy",
        "A copy does not overwrite an existing file.",
        Replace("| os.O_EXCL", ""),
        "steps/test_pinned_executable.py::test_pinned_copy_does_not_overwrite_an_existing_file",
    ),
    guard(
        "programs.listed_variables",
        "A step sets only listed variables while programs are restricted.",
        Condition("True"),
        "steps/test_executable.py::test_only_listed_variables_are_set_while_programs_are_restricted",
    ),
    guard(
        "programs.hard_links",
        "No hard link leads out of the list of allowed programs.",
        Condition("False"),
        "steps/test_executable.py::test_hard_link_of_another_owner_does_not_bypass_the_list",
    ),
    guard(
        "programs.code_variables",
        "Environment variables that decide which code runs are refused.",
        Condition("False"),
        "steps/test_program_arguments.py::test_variable_that_decides_which_code_runs_is_rejected_in_any_case",
    ),
    guard(
        "programs.code_variables_in_any_case",
        "They are refused in lower case too.",
        Replace("re.IGNORECASE,", ""),
        "steps/test_program_arguments.py::test_variable_that_decides_which_code_runs_is_rejected_in_any_case",
    ),
    # --- step_files
    guard(
        "step_files.inside_folder",
        "A step file is inside the folder for step files.",
        Condition("False"),
        "steps/test_sql_scripts.py::test_step_files_are_limited_to_their_folder_and_exclude_files_of_tenuto",
    ),
    guard(
        "step_files.resolved_path",
        "The path of a step file is checked after links are resolved.",
        Replace("resolve", "absolute"),
        "steps/test_sql_scripts.py::test_step_files_are_limited_to_their_folder_and_exclude_files_of_tenuto",
    ),
    guard(
        "step_files.own_files",
        "Files of Tenuto are not step files.",
        Condition("False"),
        "steps/test_sql_scripts.py::test_step_files_are_limited_to_their_folder_and_exclude_files_of_tenuto",
    ),
    guard(
        "step_files.home_folder",
        "Nothing else in the home folder is a step file.",
        Remove(),
        "steps/test_sql_scripts.py::test_step_files_are_limited_to_their_folder_and_exclude_files_of_tenuto",
    ),
    guard(
        "step_files.hard_links",
        "A hard link to a file of Tenuto is not a step file.",
        Value("False"),
        "steps/test_sql_scripts.py::test_step_files_are_limited_to_their_folder_and_exclude_files_of_tenuto",
    ),
    guard(
        "step_files.key_files",
        "Key files outside of the home folder are not step files.",
        Remove(),
        "steps/test_sql_scripts.py::test_step_files_are_limited_to_their_folder_and_exclude_files_of_tenuto",
    ),
    guard(
        "step_files.settings_file",
        "The settings file is not a step file.",
        Remove(),
        "steps/test_sql_scripts.py::test_step_files_are_limited_to_their_folder_and_exclude_files_of_tenuto",
    ),
    guard(
        "step_files.private_folder",
        "The folder for step files is readable by its user only.",
        Replace("mode=0o700,", ""),
        "steps/test_sql_scripts.py::test_step_files_are_limited_to_their_folder_and_exclude_files_of_tenuto",
    ),
    # --- sql_scripts
    guard(
        "sql_scripts.forbidden_login",
        "A login with too many privileges is refused.",
        Condition("False"),
        "steps/test_sql_scripts.py::test_sql_script_with_the_login_of_tenuto_is_forbidden",
    ),
    guard(
        "sql_scripts.own_login",
        "The login of Tenuto is refused.",
        Condition("False"),
        "steps/test_sql_scripts.py::test_sql_script_with_the_login_of_tenuto_is_forbidden",
    ),
    guard(
        "sql_scripts.table_privileges",
        "A login that may change the tables of Tenuto is refused.",
        Replace("await connection.fetchval(SQL.find_privilege_on_tenuto)", "None"),
        "steps/test_sql_scripts.py::test_sql_script_with_a_privileged_login_is_rejected",
    ),
    guard(
        "sql_scripts.superuser",
        "The login of a superuser is refused.",
        Replace("await connection.fetchval(SQL.find_privilege_on_server)", "None"),
        "steps/test_sql_scripts.py::test_sql_script_with_a_privileged_login_is_rejected",
    ),
    guard(
        "sql_scripts.role_membership",
        "A login that can switch to a role with these privileges is refused.",
        Replace("MEMBER", "USAGE"),
        "steps/test_sql_scripts.py::test_login_with_a_privilege_on_tenuto_is_detected",
    ),
    guard(
        "sql_scripts.table_grants",
        "A login with a grant on any table of Tenuto is refused, also with TRIGGER or REFERENCES only.",
        Replace(", REFERENCES, TRIGGER", ""),
        "steps/test_sql_scripts.py::test_login_with_a_privilege_on_tenuto_is_detected",
    ),
    guard(
        "sql_scripts.column_grants",
        "A login with a grant on a column of Tenuto is refused.",
        Replace("OR has_any_column_privilege(roles.oid, relations.oid, 'INSERT, UPDATE, REFERENCES')", ""),
        "steps/test_sql_scripts.py::test_login_with_a_privilege_on_tenuto_is_detected",
    ),
    guard(
        "sql_scripts.schema_create",
        "A login that may create objects in the schema of Tenuto is refused.",
        Condition("false"),
        "steps/test_sql_scripts.py::test_login_with_a_privilege_on_tenuto_is_detected",
    ),
    guard(
        "sql_scripts.function_owner",
        "A login that owns a function of Tenuto, or one that its triggers call, is refused.",
        Replace("= proowner", "= 0"),
        "steps/test_sql_scripts.py::test_login_with_a_privilege_on_tenuto_is_detected",
    ),
    guard(
        "sql_scripts.create_role",
        "A login that may create roles is refused.",
        Remove(),
        "steps/test_sql_scripts.py::test_login_with_a_privilege_on_the_server_is_detected",
    ),
    guard(
        "sql_scripts.server_programs",
        "A login that may run programs or write files on the server is refused.",
        Replace("OR role.rolname IN", "OR false AND role.rolname IN"),
        "steps/test_sql_scripts.py::test_login_with_a_privilege_on_the_server_is_detected",
    ),
    guard(
        "sql_scripts.superuser_membership",
        "A login that can switch to a superuser is refused.",
        Condition("role.rolname = session_user"),
        "steps/test_sql_scripts.py::test_login_with_a_privilege_on_the_server_is_detected",
    ),
    # --- http_call
    guard(
        "http_call.every_address",
        "Every address of a host name is checked.",
        Replace(":", "[:1]:"),
        "steps/test_address_policy.py::test_address_policy_blocks_addresses_that_are_not_public",
    ),
    guard(
        "http_call.plain_address",
        "An address is checked in its plain form.",
        Value("address"),
        "steps/test_address_policy.py::test_address_policy_unwraps_ipv4_addresses_in_ipv6",
    ),
    guard(
        "http_call.checked_address",
        "The connection goes to the address that was checked.",
        Replace("last", "(await self._addresses(host, port))[-1]"),
        "steps/test_http_call.py::test_http_call_connects_to_the_checked_address",
    ),
    guard(
        "http_call.checked_blocking",
        "The connection of plain code goes to the address that was checked.",
        Replace("str(last)", "str(self._addresses(host, port)[-1])"),
        "steps/test_blocking_transport.py::test_blocking_transport_connects_to_the_checked_address",
    ),
    guard(
        "http_call.credentials",
        "Credentials are not sent to another origin after a redirect.",
        Condition("False"),
        "steps/test_http_call.py::test_http_call_follows_redirects_on_request_and_checks_each_target",
    ),
    guard(
        "http_call.bounded_body",
        "The size of a response body is bounded.",
        Condition("False"),
        "steps/test_http_call.py::test_http_call_limits_time_and_memory_whatever_the_server_sends",
    ),
    # --- logs
    guard(
        "logs.one_entry_per_task",
        "A task appends its log entry once.",
        Remove(),
        "steps/test_log_append.py::test_log_append_adds_one_entry_for_several_attempts",
        places=2,
    ),
    guard(
        "logs.entries_of_open_tasks",
        "Log entries of open tasks are kept.",
        Remove(),
        "store/test_named_logs.py::test_old_log_entries_are_deleted_except_those_of_open_tasks",
    ),
    # --- redaction
    guard(
        "redaction.partial_value",
        "Text that may be the beginning of a secret is held back until the next chunk.",
        Value("len(text)"),
        "jobs/test_redaction.py::test_redactor_finds_a_value_across_chunks",
    ),
    guard(
        "redaction.field_names",
        "Field names are redacted.",
        Replace("self.redact_text(name)", "name"),
        "jobs/test_redaction.py::test_redacted_json_stays_json",
    ),
    guard(
        "redaction.error_type",
        "The name of an error class that contains a secret is redacted.",
        Replace("redact(_error_type_name(error_type))", "_error_type_name(error_type)"),
        "jobs/test_redaction.py::test_name_of_an_error_class_is_redacted",
    ),
    guard(
        "redaction.numbers",
        "Numbers are redacted.",
        Value("value"),
        "jobs/test_redaction.py::test_redacted_json_stays_json",
    ),
    guard(
        "redaction.base64",
        "A secret is found inside longer base64 text.",
        Replace("3", "1"),
        "jobs/test_redaction.py::test_redactor_finds_every_form_of_a_value",
    ),
    guard(
        "redaction.wrong_encoding",
        "A secret that was decoded with the wrong encoding is found.",
        Condition("False"),
        "jobs/test_redaction.py::test_redactor_finds_every_form_of_a_value",
    ),
    guard(
        "redaction.lines",
        "Every line of a secret is redacted.",
        Replace(", *lines", ""),
        "jobs/test_redaction.py::test_redactor_redacts_every_line_of_a_value_except_short_ones",
    ),
    guard(
        "redaction.shared_form",
        "A form that two secrets share is redacted until both are forgotten.",
        Remove(),
        "jobs/test_redaction.py::test_redactor_keeps_a_form_shared_by_two_values",
    ),
    guard(
        "redaction.renewed_value",
        "A secret that is used again is not the oldest.",
        Remove(),
        "jobs/test_redaction.py::test_redactor_forgets_the_oldest_value_beyond_its_limit",
        places=2,
    ),
    guard(
        "redaction.exceptions",
        "An exception is not formatted again after redaction.",
        Remove(),
        "jobs/test_redaction.py::test_attempt_leaves_no_redacted_value_behind",
    ),
)
