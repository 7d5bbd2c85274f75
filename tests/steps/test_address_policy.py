"""The address policy of HTTP calls: every special range is blocked in every spelling, unless it is listed."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Forbidden, Invalid
from tenuto.settings import load_settings
from tenuto.steps.address_policy import (
    AllowList,
    blocked_category,
    check_addresses,
    effective_address,
    parse_address,
    parse_host_name,
)
from tests.support.errors import raises_code

BLOCKED = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255",
    "127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255",
    "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255",
    "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "::1",
    "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1",
    "2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1",
    "febf::1", "fec0::1", "ff02::1", "4000::1",
]  # fmt: skip
PUBLIC = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
    "128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.167.255.255",
    "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:4700::1111", "2a00:1450:4001::1",
    "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::",
]  # fmt: skip


@pytest.mark.parametrize("text", BLOCKED)
def test_address_policy_blocks_addresses_that_are_not_public(text: str) -> None:
    assert blocked_category(ip_address(text)) is not None
    with raises_code("step.http.url.not_allowed", Forbidden):
        check_addresses("name.example", [ip_address("1.1.1.1"), ip_address(text)], AllowList())


@pytest.mark.parametrize("text", PUBLIC)
def test_address_policy_allows_public_addresses(text: str) -> None:
    address = ip_address(text)
    assert check_addresses("name.example", [address], AllowList()) == [address]


@given(st.integers(0, 2**32 - 1))
def test_address_policy_unwraps_ipv4_addresses_in_ipv6(number: int) -> None:
    address = IPv4Address(number)
    wrapped = [
        IPv6Address((0xFFFF << 32) | number),
        IPv6Address((0x64FF9B << 96) | number),
        IPv6Address((0x2002 << 112) | (number << 80)),
        *([IPv6Address(number)] if number > 1 else []),
    ]
    assert {effective_address(each) for each in wrapped} == {address}
    assert {blocked_category(each) for each in wrapped} == {blocked_category(address)}
    # The classification of the library differs between versions; everything it calls special is blocked here.
    if address.is_loopback or address.is_private or address.is_link_local or address.is_multicast:
        assert blocked_category(address) is not None


@given(st.integers(0, 2**128 - 1))
def test_address_policy_allows_only_global_ipv6_addresses(number: int) -> None:
    address = IPv6Address(number)
    if not address.is_global and address.ipv4_mapped is None and address.sixtofour is None:
        assert blocked_category(address) is not None or effective_address(address) != address


def test_allow_list_permits_only_its_entries() -> None:
    allow_list = AllowList.parse(["10.1.0.0/16", "fd00::/8", "inside.example", "localhost", "[::1]"])
    permitted = {
        ("x.example", "10.1.2.3"), ("x.example", "::ffff:10.1.2.3"), ("x.example", "fd00::1"), ("x.example", "::1"),
        ("inside.example", "192.168.0.1"), ("INSIDE.example.", "100.64.0.1"), ("localhost", "127.0.0.1"),
    }  # fmt: skip
    blocked = {
        ("x.example", "10.2.0.1"), ("x.example", "192.168.0.1"), ("inside.example", "127.0.0.1"),
        ("inside.example", "169.254.169.254"), ("inside.example", "224.0.0.1"), ("not.inside.example", "192.168.0.1"),
        ("localhost", "169.254.169.254"), ("127.0.0.1", "127.0.0.1"),
    }  # fmt: skip
    for host, address in permitted:
        assert check_addresses(host, [ip_address(address)], allow_list)
    for host, address in blocked:
        with raises_code("step.http.url.not_allowed", Forbidden):
            check_addresses(host, [ip_address(address)], allow_list)


def test_address_policy_blocks_addresses_of_this_machine() -> None:
    """Also its public addresses: services that listen there may be internal, such as the API of Tenuto."""
    own = ip_address("8.8.4.4")
    assert blocked_category(own, own.__eq__) == "an address of this machine"
    assert blocked_category(ip_address("::ffff:8.8.4.4"), own.__eq__) == "an address of this machine"
    with raises_code("step.http.url.not_allowed", Forbidden):
        check_addresses("api.example", [own], AllowList(), own.__eq__)
    assert check_addresses("api.example", [own], AllowList.parse(["api.example"]), own.__eq__)


@pytest.mark.parametrize(
    "text",
    ["2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "127.1", "127.0.1", "0x7f.0.0.1", "1.2.3.04", "1.2.3.4.5",
     "1.2.3.256", "a.b.1", "127.0.0.1.", "", ".", "-a.example", "a-.example", "a..b", "a b", "a" * 64, "a." * 200,
     "fe80::1%lo", "fe80::1%25lo", "[::1", "ä.example", "a/b", "a@b"],
)  # fmt: skip
def test_host_in_unusual_spelling_is_rejected(text: str) -> None:
    with raises_code("step.http.url.host_invalid", Invalid):
        parse_address(text)


def test_host_names_and_addresses_are_distinguished() -> None:
    assert parse_address("10.0.0.1") == ip_address("10.0.0.1")
    assert parse_address("[::1]") == ip_address("::1")
    for name in ("a.example", "xn--bcher-kva.example", "a_b.svc", "localhost.", "1a.example", "A-1.Example"):
        assert parse_address(name) is None
    assert parse_host_name("A.Example.") == "a.example"


def test_setting_http_allow_accepts_names_and_networks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_HTTP_ALLOWED_HOSTS", "10.0.0.0/8, hooks.svc.local ,::1")
    assert load_settings().http_allowed_hosts == ("10.0.0.0/8", "hooks.svc.local", "::1")
    assert len(AllowList.parse(load_settings().http_allowed_hosts).networks) == 2
    for wrong in ("10.0.0.1/8", "300.1.1.1", "http://a", "*", "a b", "*.example"):
        with pytest.raises(Invalid) as caught:
            load_settings(http_allowed_hosts=[wrong])
        assert caught.value.field == "http_allowed_hosts"
