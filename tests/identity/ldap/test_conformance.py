"""The conformance suite over the LDAP connector and a real slapd, with each source of changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tenuto_identity.connectors import registry
from tenuto_identity.connectors.conformance import CHECKS, Check, ConnectorUnderTest, Sample
from tenuto_identity.connectors.contract import Connector, ConnectorContext
from tenuto_identity.model.schema import Attribute, ObjectType, Writable
from tenuto_identity.model.values import DataType
from tests.identity.ldap.conftest import Administrator
from tests.identity.ldap.slapd import PASSWORD, Slapd

PERSON = ObjectType(
    "inetOrgPerson",
    anchor="entryUUID",
    attributes={
        "entryUUID": Attribute("entryUUID", DataType.GUID, writable=Writable.NO),
        "cn": Attribute("cn"),
        "sn": Attribute("sn"),
        "title": Attribute("title"),
        "description": Attribute("description"),
        "mail": Attribute("mail", multi=True),
        "jpegPhoto": Attribute("jpegPhoto", DataType.BINARY),
        "manager": Attribute("manager", DataType.REFERENCE, to="inetOrgPerson"),
    },
    address_is_dn=True,
)


def person(number: int) -> Sample:
    values: dict[str, tuple[str | int | bool, ...]] = {
        "cn": (f"Person, {number}",),
        "sn": (f"Müller {number}",),
        "mail": (f"p{number}@example.org", f"q{number}@example.org"),
        "jpegPhoto": ("AAEC/w==",),
    }
    return Sample(f"cn=Person\\2C {number},ou=people,dc=ad,dc=test", values)


@pytest.fixture(params=["accesslog", "syncrepl"])
def system(request: pytest.FixtureRequest, slapd: Slapd, ad: Administrator) -> Iterator[ConnectorUnderTest]:
    opened: list[Connector] = []

    def open_connector(*, read_only: bool = False) -> Connector:
        context = ConnectorContext((PERSON,), secrets={"bind": PASSWORD}, read_only=read_only)
        opened.append(registry.open_connector("ldap", slapd.settings("ad", delta=request.param), context))
        return opened[-1]

    @contextmanager
    def interrupted() -> Iterator[None]:
        with slapd.stopped():
            yield

    yield ConnectorUnderTest(
        open=open_connector,
        object_type=PERSON,
        sample=person,
        text_attribute="description",
        multi_attribute="mail",
        renamed=lambda address: address.replace("cn=Person", "cn=Somebody"),
        interrupted=interrupted,
        forget_changes=(lambda: slapd.forget_log("ad")) if request.param == "accesslog" else None,
    )
    for each in opened:
        each.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_ldap_connector_passes_the_conformance_suite(check: Check, system: ConnectorUnderTest) -> None:
    check(system)
