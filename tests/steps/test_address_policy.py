"""Which addresses may be called: every special range in every spelling is closed, and opened by its listing alone."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Forbidden, Invalid
from tenuto.settings import load
from tenuto.steps.http.address_policy import Allowance, callable_ones, closed_as, host_name, literal, plain

CLOSED = [
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


@pytest.mark.parametrize("text", CLOSED)
def test_what_is_not_public_is_closed(text: str) -> None:
    assert closed_as(ip_address(text)) is not None
    with pytest.raises(Forbidden, match="TENUTO_HTTP_ALLOW"):
        callable_ones("name.example", [ip_address("1.1.1.1"), ip_address(text)], Allowance())


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_public_may_be_called(text: str) -> None:
    address = ip_address(text)
    assert callable_ones("name.example", [address], Allowance()) == [address]


@given(st.integers(0, 2**32 - 1))
def test_an_address_in_another_wrapping_is_the_same_address(number: int) -> None:
    address = IPv4Address(number)
    wrapped = [
        IPv6Address((0xFFFF << 32) | number),
        IPv6Address((0x64FF9B << 96) | number),
        IPv6Address((0x2002 << 112) | (number << 80)),
        *([IPv6Address(number)] if number > 1 else []),
    ]
    assert {plain(each) for each in wrapped} == {address}
    assert {closed_as(each) for each in wrapped} == {closed_as(address)}
    # The library's own opinion, which differs between versions: nothing it calls closed is open here.
    if address.is_loopback or address.is_private or address.is_link_local or address.is_multicast:
        assert closed_as(address) is not None


@given(st.integers(0, 2**128 - 1))
def test_of_the_new_addresses_only_global_ones_are_open(number: int) -> None:
    address = IPv6Address(number)
    if not address.is_global and address.ipv4_mapped is None and address.sixtofour is None:
        assert closed_as(address) is not None or plain(address) != address


def test_a_listing_opens_what_it_names_and_nothing_else() -> None:
    allowance = Allowance.of(["10.1.0.0/16", "fd00::/8", "inside.example", "localhost", "[::1]"])
    opened = {
        ("x.example", "10.1.2.3"), ("x.example", "::ffff:10.1.2.3"), ("x.example", "fd00::1"), ("x.example", "::1"),
        ("inside.example", "192.168.0.1"), ("INSIDE.example.", "100.64.0.1"), ("localhost", "127.0.0.1"),
    }  # fmt: skip
    closed = {
        ("x.example", "10.2.0.1"), ("x.example", "192.168.0.1"), ("inside.example", "127.0.0.1"),
        ("inside.example", "169.254.169.254"), ("inside.example", "224.0.0.1"), ("not.inside.example", "192.168.0.1"),
        ("localhost", "169.254.169.254"), ("127.0.0.1", "127.0.0.1"),
    }  # fmt: skip
    for host, address in opened:
        assert callable_ones(host, [ip_address(address)], allowance)
    for host, address in closed:
        with pytest.raises(Forbidden):
            callable_ones(host, [ip_address(address)], allowance)


def test_the_machines_own_addresses_are_closed_too() -> None:
    """Its public one as well: what listens there may be meant for the inside, such as our own API."""
    own = {ip_address("8.8.4.4")}
    assert closed_as(ip_address("8.8.4.4"), own) == "an address of this machine"
    assert closed_as(ip_address("::ffff:8.8.4.4"), own) == "an address of this machine"
    with pytest.raises(Forbidden, match=r"api\.example leads to 8\.8\.4\.4, an address of this machine"):
        callable_ones("api.example", list(own), Allowance(), own)
    assert callable_ones("api.example", list(own), Allowance.of(["api.example"]), own)


@pytest.mark.parametrize(
    "text",
    ["2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "127.1", "127.0.1", "0x7f.0.0.1", "1.2.3.04", "1.2.3.4.5",
     "1.2.3.256", "a.b.1", "127.0.0.1.", "", ".", "-a.example", "a-.example", "a..b", "a b", "a" * 64, "a." * 200,
     "fe80::1%lo", "fe80::1%25lo", "[::1", "ä.example", "a/b", "a@b"],
)  # fmt: skip
def test_a_host_in_an_odd_spelling_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        literal(text)


def test_names_and_addresses_are_told_apart() -> None:
    assert literal("10.0.0.1") == ip_address("10.0.0.1")
    assert literal("[::1]") == ip_address("::1")
    for name in ("a.example", "xn--bcher-kva.example", "a_b.svc", "localhost.", "1a.example", "A-1.Example"):
        assert literal(name) is None
    assert host_name("A.Example.") == "a.example"


def test_the_setting_takes_names_and_networks_and_refuses_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_HTTP_ALLOW", "10.0.0.0/8, hooks.svc.local ,::1")
    assert load().http_allow == ("10.0.0.0/8", "hooks.svc.local", "::1")
    assert len(Allowance.of(load().http_allow).networks) == 2
    for wrong in ("10.0.0.1/8", "300.1.1.1", "http://a", "*", "a b", "*.example"):
        with pytest.raises(Invalid) as refusal:
            load(http_allow=[wrong])
        assert refusal.value.field == "http_allow"
