"""The encoder and the decoder of LDAP messages agree with ldap3 (a rule that exists twice)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ldap3.operation.add import add_operation
from ldap3.operation.delete import delete_operation
from ldap3.operation.modify import modify_operation
from ldap3.operation.modifyDn import modify_dn_operation
from ldap3.protocol.rfc4511 import LDAPMessage, MessageID, ProtocolOp
from ldap3.strategy.base import BaseStrategy
from ldap3.utils.asn1 import decode_message_fast, encode

from tenuto_identity.connectors.ldap.protocol import ber, messages
from tenuto_identity.connectors.ldap.protocol.client import (
    Add,
    Control,
    Delete,
    Entry,
    Mod,
    Modification,
    Modify,
    ModifyDn,
)

_NAMES = {Mod.ADD: "MODIFY_ADD", Mod.DELETE: "MODIFY_DELETE", Mod.REPLACE: "MODIFY_REPLACE"}
dns = st.text(st.characters(codec="utf-8"), max_size=200)
attribute_names = st.from_regex(r"[a-z]{1,12}(;lang-de)?", fullmatch=True)
values = st.lists(st.binary(max_size=300), min_size=1, max_size=3)
tables = st.dictionaries(attribute_names, values, min_size=1, max_size=4)


def by_ldap3(number: int, kind: str, operation: Any) -> bytes:
    message = LDAPMessage()
    message["messageID"] = MessageID(number)
    message["protocolOp"] = ProtocolOp().setComponentByName(kind, operation)
    return bytes(encode(message))


@given(st.integers(1, 2**31 - 1), dns, tables)
def test_add_is_encoded_as_by_ldap3(number: int, name: str, attributes: dict[str, list[bytes]]) -> None:
    theirs = by_ldap3(number, "addRequest", add_operation(name, attributes, auto_encode=False))
    ours = messages.encode_write(number, Add(name, attributes))
    assert sorted(ours) == sorted(theirs)  # ldap3 sorts the values of a set
    assert len(ours) == len(theirs)


@given(st.integers(1, 2**31 - 1), dns, attribute_names, st.binary(max_size=300), st.sampled_from(Mod))
def test_modify_is_encoded_as_by_ldap3(number: int, name: str, attribute: str, value: bytes, mod: Mod) -> None:
    theirs = modify_operation(name, {attribute: [(_NAMES[mod], [value])]}, auto_encode=False)
    ours = messages.encode_write(number, Modify(name, (Modification(attribute, mod, (value,)),)))
    assert ours == by_ldap3(number, "modifyRequest", theirs)


@given(dns, dns, st.none() | dns)
def test_rename_and_delete_are_encoded_as_by_ldap3(name: str, rdn: str, superior: str | None) -> None:
    theirs = modify_dn_operation(name, rdn, True, superior or None)
    ours = messages.encode_write(7, ModifyDn(name, rdn, superior or None))
    assert ours == by_ldap3(7, "modDNRequest", theirs)
    assert messages.encode_write(7, Delete(name)) == by_ldap3(7, "delRequest", delete_operation(name))


@given(st.lists(st.tuples(st.booleans(), st.none() | st.binary(max_size=200)), min_size=1, max_size=3))
def test_controls_are_encoded_as_ldap3_decodes_them(controls: list[tuple[bool, bytes | None]]) -> None:
    given_controls = tuple(Control(f"1.2.{place}", value, critical) for place, (critical, value) in enumerate(controls))
    operation = ber.sequence(ber.integer(0, ber.ENUMERATED), ber.octets(""), ber.octets(""), tag=messages.DONE)
    data = messages.encode_message(1, operation, given_controls)
    found = dict(BaseStrategy.decode_control_fast(each[3], False) for each in decode_message_fast(data)["controls"])
    for each in given_controls:
        assert found[each.oid]["criticality"] is each.is_critical
        assert bytes(found[each.oid]["value"] or b"") == (each.value or b"")


@given(st.integers(1, 2**31 - 1), dns, tables, st.binary(max_size=50))
def test_entry_is_decoded_as_it_was_encoded(
    number: int, name: str, attributes: dict[str, list[bytes]], cookie: bytes
) -> None:
    listed = [
        ber.sequence(ber.octets(each), ber.sequence(*map(ber.octets, found), tag=ber.SET))
        for each, found in attributes.items()
    ]
    operation = ber.sequence(ber.octets(name), ber.sequence(*listed), tag=messages.ENTRY)
    data = messages.encode_message(number, operation, [Control("1.2.3", cookie)])
    assert messages.message_end(data, 0) == len(data)
    assert messages.decode_message(data) == (number, Entry(name, attributes, {"1.2.3": cookie}))
    theirs = decode_message_fast(data)
    assert theirs["messageID"] == number
    assert theirs["payload"][0][3] == name.encode()


@given(st.integers(0, 5000), st.text(max_size=200), dns, st.lists(st.text(min_size=1, max_size=20), max_size=2))
def test_result_is_decoded(code: int, text: str, matched: str, urls: list[str]) -> None:
    text = text.encode("utf-8", "ignore").decode()
    urls = [each.encode("utf-8", "ignore").decode() for each in urls]
    referrals = ber.sequence(*map(ber.octets, urls), tag=0xA3) if urls else b""
    operation = ber.sequence(
        ber.integer(code, ber.ENUMERATED), ber.octets(matched), ber.octets(text), referrals, tag=messages.DONE
    )
    number, part = messages.decode_message(messages.encode_message(3, operation, ()))
    assert (number, part) == (3, messages.Result(code, matched, text, tuple(urls), {}))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_an_error_and_nothing_else(data: bytes) -> None:
    try:
        end = messages.message_end(data, 0)
        if end:
            messages.decode_message(data[:end])
    except ber.BerError:
        pass


def test_entry_whose_values_are_cut_off_is_an_error() -> None:
    operation = ber.sequence(
        ber.octets("cn=a"),
        ber.sequence(ber.sequence(ber.octets("cn"), ber.sequence(ber.octets(b"abc"), tag=ber.SET))),
        tag=messages.ENTRY,
    )
    whole = messages.encode_message(1, operation, ())
    broken = whole[:-4] + bytes([0x7F]) + whole[-3:]  # the value claims to be longer than its set
    with pytest.raises(ber.BerError):
        messages.decode_message(broken)


@pytest.mark.parametrize("place", ["name", "attributes", "attribute", "attribute name", "values", "value", "number"])
@pytest.mark.parametrize("is_long", [False, True], ids=["short length", "long length"])
def test_ldap_entry_with_a_length_beyond_the_message_is_an_error(place: str, is_long: bool) -> None:
    def element(tag: int, content: bytes, name: str = "") -> bytes:
        size = len(content) + (100 if name == place else 0)
        return bytes([tag, *((0x84, 0, 0, 0, size) if is_long else (size,))]) + content

    value = element(ber.OCTETS, b"b", "value")
    pair = element(ber.OCTETS, b"cn", "attribute name") + element(ber.SET, value, "values")
    attributes = element(ber.SEQUENCE, element(ber.SEQUENCE, pair, "attribute"), "attributes")
    entry = element(messages.ENTRY, element(ber.OCTETS, b"cn=a", "name") + attributes)
    data = element(ber.SEQUENCE, element(0x02, b"\x01", "number") + entry)
    with pytest.raises(ber.BerError):
        messages.decode_message(data)


def test_ldap_value_that_ends_beyond_all_its_containers_is_an_error() -> None:
    """All lengths agree with each other, and exceed what arrived."""
    value = bytes([ber.OCTETS, 50]) + b"b"
    pair = ber.octets("cn") + bytes([ber.SET, 52]) + value
    attribute = bytes([ber.SEQUENCE, 4 + 54]) + pair
    attributes = bytes([ber.SEQUENCE, 60]) + attribute
    entry = bytes([messages.ENTRY, 6 + 62]) + ber.octets("cn=a") + attributes
    data = ber.sequence(ber.integer(1), entry)
    with pytest.raises(ber.BerError):
        messages.decode_message(data)
