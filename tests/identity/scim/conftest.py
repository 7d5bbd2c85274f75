"""Fixtures of the tests of the SCIM connector: one scim2-server for all tests of a process, a tenant for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenuto_identity.connectors import registry
from tenuto_identity.connectors.contract import Connector, ConnectorContext
from tenuto_identity.model.schema import Attribute, ObjectType, Writable
from tenuto_identity.model.values import DataType
from tests.identity.scim.service import ENTERPRISE, TOKEN, Gateway, ScimServer, Tenant, settings

WORK_MAIL = 'emails[type eq "work"].value'
USER_TYPE = ObjectType(
    "User",
    anchor="id",
    attributes={
        "id": Attribute("id", writable=Writable.NO),
        "userName": Attribute("userName"),
        "externalId": Attribute("externalId"),
        "title": Attribute("title"),
        "name.familyName": Attribute("name.familyName"),
        "active": Attribute("active", DataType.BOOLEAN),
        "roles": Attribute("roles", multi=True),
        WORK_MAIL: Attribute(WORK_MAIL),
        f"{ENTERPRISE}:department": Attribute(f"{ENTERPRISE}:department"),
        f"{ENTERPRISE}:manager": Attribute(f"{ENTERPRISE}:manager", DataType.REFERENCE, to="User"),
    },
)
GROUP_TYPE = ObjectType(
    "Group",
    anchor="id",
    attributes={
        "id": Attribute("id", writable=Writable.NO),
        "displayName": Attribute("displayName"),
        "members": Attribute("members", DataType.REFERENCE, multi=True, to="User"),
    },
)
TYPES = (USER_TYPE, GROUP_TYPE)
WAIT = ConnectorContext().wait


class OpenScim:
    """Opens connectors and closes them after the test."""

    def __init__(self) -> None:
        self._opened: list[Connector] = []

    def __call__(
        self,
        url: str,
        object_types: tuple[ObjectType, ...] = TYPES,
        *,
        read_only: bool = False,
        allowed_hosts: tuple[str, ...] = ("127.0.0.1",),
        secrets: dict[str, str] | None = None,
        wait: Callable[[float], bool] = WAIT,
        **more: Any,
    ) -> Connector:
        context = ConnectorContext(
            object_types,
            secrets=secrets or {"scim": TOKEN},
            read_only=read_only,
            allowed_hosts=allowed_hosts,
            wait=wait,
        )
        self._opened.append(registry.open_connector("scim", settings(url, **more), context))
        return self._opened[-1]

    def close(self) -> None:
        for each in self._opened:
            each.close()


@pytest.fixture(scope="session")
def scim_server() -> Iterator[ScimServer]:
    server = ScimServer()
    server.start()
    yield server
    server.kill()


@pytest.fixture
def tenant(scim_server: ScimServer) -> Tenant:
    """An empty service."""
    scim_server.ensure_running()
    return scim_server.new_tenant()


@pytest.fixture
def gateway(tenant: Tenant) -> Iterator[Gateway]:
    """A gateway to an empty service."""
    found = Gateway(tenant)
    yield found
    found.close()


@pytest.fixture
def open_scim() -> Iterator[Callable[..., Connector]]:
    opener = OpenScim()
    yield opener
    opener.close()
