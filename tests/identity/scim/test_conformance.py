"""The conformance suite over the SCIM connector and a real scim2-server, with all features and with few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenuto_identity.connectors.conformance import CHECKS, Check, ConnectorUnderTest, Sample
from tenuto_identity.connectors.contract import Connector
from tenuto_identity.model.values import Value
from tests.identity.scim.conftest import USER_TYPE, WORK_MAIL
from tests.identity.scim.service import ENTERPRISE, Gateway, without_features


def user(number: int) -> Sample:
    values: dict[str, tuple[Value, ...]] = {
        "userName": (f"user{number}",),
        "name.familyName": (f"Müller {number}",),
        "active": (True,),
        "roles": (f"r{number}", f"s{number}"),
        WORK_MAIL: (f"u{number}@example.org",),
        f"{ENTERPRISE}:department": ("Research",),
    }
    return Sample(f"user{number}", values)


VARIANTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "standard": ({"delta": "last_modified", "concurrency": 2}, ()),
    "bulk": ({"delta": "none", "bulk": True}, ()),
    "few features": ({"delta": "none", "page_size": 4}, ("patch", "filter", "sort", "etag")),
}
"""Settings, and features that the service does not announce."""


@pytest.fixture(params=VARIANTS)
def system(request: pytest.FixtureRequest, gateway: Gateway, open_scim: Callable[..., Connector]) -> ConnectorUnderTest:
    options, absent = VARIANTS[request.param]
    if absent:
        gateway.behaviour = without_features(*absent)

    def open_connector(*, read_only: bool = False) -> Connector:
        return open_scim(gateway.url, (USER_TYPE,), read_only=read_only, **options)

    return ConnectorUnderTest(
        open=open_connector,
        object_type=USER_TYPE,
        sample=user,
        text_attribute="title",
        multi_attribute="roles",
        renamed=lambda address: f"{address}.renamed",
        interrupted=gateway.tenant.server.killed,
        delta_has_deletions=False,
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_scim_connector_passes_the_conformance_suite(check: Check, system: ConnectorUnderTest) -> None:
    check(system)
