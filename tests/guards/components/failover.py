"""Guards of database failover."""

from __future__ import annotations

from tests.guards.guard import Remove, Replace, guard

GUARDS = (
    guard(
        "failover.repeated_write_waits_for_standby",
        "A repeated write is accepted only when the synchronous standbys have the commit whose reply was lost.",
        Remove(),
        "failover/test_server_roles.py::test_repeated_write_is_not_accepted_before_the_standby_has_it",
    ),
    guard(
        "failover.read_only_connection",
        "A connection to a server that has become a standby is not used again.",
        Replace("asyncpg.ReadOnlySQLTransactionError,", ""),
        "postgres/test_connector.py::test_connection_that_became_read_only_is_replaced",
    ),
    guard(
        "failover.former_primary",
        "A primary whose successor this host has used is not written to.",
        Remove(),
        "failover/test_lost_commits.py::test_former_primary_is_not_used_after_its_successor",
    ),
    guard(
        "failover.former_primary_at_start",
        "A restarted process does not connect to a former primary whose successor an earlier process has used.",
        Remove(),
        "failover/test_lost_commits.py"
        "::test_restarted_services_use_the_promoted_server_while_the_former_primary_answers_first",
    ),
    guard(
        "failover.exit_after_loss",
        "A process does not go on in a database that lacks commits which it saw acknowledged.",
        Remove(),
        "service/test_history_watch.py::test_process_that_finds_an_older_mark_exits",
    ),
    guard(
        "failover.mark_before_query",
        "A mark that is acknowledged while a connection is checked does not look like a lost one.",
        Replace("(seen,", "(self._seen,"),
        "service/test_history_watch.py::test_mark_acknowledged_while_a_connection_is_checked_is_not_a_loss",
    ),
    guard(
        "replica.has_what_the_reader_needs",
        "A reader gets the read replica only if it has everything that is older than the reader allows.",
        Replace("self._current_at >= needed_at", "True"),
        "failover/test_read_replica.py::test_replica_is_used_only_while_its_state_is_recent_enough",
    ),
    guard(
        "replica.own_changes",
        "A caller who has changed something, or read the primary, does not read an older state from the read replica.",
        Remove(),
        "failover/test_read_replica.py::test_lists_and_pages_come_from_the_replica_but_callers_see_their_own_changes",
    ),
    guard(
        "replica.measured_server_only",
        "A standby is not read before its own state has been measured.",
        Remove(),
        "failover/test_read_replica.py::test_other_standby_of_an_address_is_not_read_before_it_is_measured",
    ),
    guard(
        "replica.same_history",
        "A server that is not a standby of the primary, on the same timeline, is not read.",
        Remove(),
        "failover/test_read_replica.py::test_replica_with_another_history_is_not_used",
    ),
)
