"""Database URLs with one or several servers."""

from __future__ import annotations

import pytest

from tenuto.postgres.servers.server_addresses import describe_address, parse_database_url, prefer_target
from tenuto.settings import redact_password


@pytest.mark.parametrize(
    ("url", "servers", "target"),
    [
        ("postgresql://u:p@one:5433/db", ["one port 5433"], None),
        ("postgresql://u:p@one/db", ["one port 5432"], None),
        ("postgresql:///db", ["the local machine port 5432"], None),
        ("postgresql://u@one:1,two:2/db", ["one port 1", "two port 2"], "read-write"),
        ("postgresql://u@one,two:2/db?target_session_attrs=any", ["one port 5432", "two port 2"], None),
        ("postgresql://u@one,two/db?target_session_attrs=prefer-standby&port=7", ["one port 7", "two port 7"],
         "prefer-standby"),
        ("postgresql://u@[::1]:5433,[fe80::1]/db", ["::1 port 5433", "fe80::1 port 5432"], "read-write"),
        ("postgresql://u@/db?host=/run/pg,two&port=1,2", ["/run/pg port 1", "two port 2"], "read-write"),
        ("postgresql://u@one/db?target_session_attrs=read-write", ["one port 5432"], "read-write"),
    ],
)  # fmt: skip
def test_url_names_its_servers_and_their_role(url: str, servers: list[str], target: str | None) -> None:
    address = parse_database_url(url)
    assert [str(server) for server in address.servers] == servers
    assert address.target == target
    assert describe_address(url) == " or ".join(servers)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://u@one,,two/db", "no host name"),
        ("postgresql://u@one,two/db?port=1,2,3", "3 ports for 2 hosts"),
        ("postgresql://u@one:70000/db", "'70000' is not a port"),
        ("postgresql://u@one,two/db?target_session_attrs=master", "'master', not one of any"),
        ("postgresql://u@" + ",".join(f"h{n}" for n in range(17)) + "/db", "17 servers, more than 16"),
    ],
)
def test_url_that_is_not_valid_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_database_url(url)
    assert describe_address(url) == "the address in TENUTO_DATABASE"


def test_parameters_of_the_client_are_not_sent_to_the_server() -> None:
    address = parse_database_url("postgresql://u@a,b/db?connect_timeout=3&target_session_attrs=any&sslmode=require")
    assert address.url == "postgresql://u@a,b/db?sslmode=require"


def test_role_is_added_to_a_url_that_names_none() -> None:
    assert (
        prefer_target("postgresql://u:%40@a,b/db", "standby")
        == "postgresql://u:%40@a,b/db?target_session_attrs=standby"
    )
    chosen = "postgresql://u@a/db?target_session_attrs=prefer-standby&sslmode=require"
    assert prefer_target(chosen, "standby") == chosen


def test_url_of_the_environment_may_name_several_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "one,two")
    monkeypatch.setenv("PGPORT", "1,2")
    assert describe_address("postgresql:///db") == "one port 1 or two port 2"


def test_password_of_a_url_with_several_servers_is_redacted() -> None:
    assert redact_password("postgresql://u:secret@one:1,two:2/db") == "postgresql://u:…@one:1,two:2/db"
