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
        "failover.exit_after_loss",
        "A process does not go on in a database that lacks commits which it saw acknowledged.",
        Remove(),
        "service/test_history_watch.py::test_process_that_finds_an_older_mark_exits",
    ),
)
