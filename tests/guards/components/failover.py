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
)
