"""Distinguished names: parsing, escaping and the normal form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto_identity.model import dn

values = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
types = st.from_regex(r"[a-zA-Z][a-zA-Z0-9-]{0,5}", fullmatch=True)
rdns = st.lists(st.builds(dn.Pair, types, values), min_size=1, max_size=3).map(tuple)
names = st.lists(rdns, min_size=0, max_size=4).map(tuple)


@given(names)
def test_dn_that_was_built_is_parsed_into_the_same_parts(name: tuple[dn.Rdn, ...]) -> None:
    assert dn.parse(dn.build(name)) == name


@given(names)
def test_normalising_is_idempotent(name: tuple[dn.Rdn, ...]) -> None:
    once = dn.normalize(dn.build(name))
    assert dn.normalize(once) == once


@given(names, st.randoms())
def test_case_spaces_and_order_in_an_rdn_do_not_matter(name: tuple[dn.Rdn, ...], random: object) -> None:
    other = ", ".join(
        " + ".join(f"{pair.type.upper()} = {dn.escape(pair.value)}" for pair in reversed(rdn)) for rdn in name
    )
    assert dn.normalize(other) == dn.normalize(dn.build(name))


@given(names, values)
def test_escaping_keeps_a_value_in_its_rdn(name: tuple[dn.Rdn, ...], value: str) -> None:
    text = dn.build([(dn.Pair("cn", value),), *name])
    assert len(dn.parse(text)) == len(name) + 1
    assert dn.depth(text) == len(name) + 1
    assert dn.parse(dn.parent(text)) == name


def outcome(function: Callable[[str], object], text: str) -> object:
    try:
        return function(text)
    except dn.InvalidDn as error:
        return str(error)


plain_texts = st.lists(
    st.one_of(
        st.text(st.sampled_from("aZ19 =#\x1f\u00a0ß<"), max_size=6),
        st.builds("{}={}".format, types, st.text(st.characters(exclude_characters=',;+"\\'), max_size=5)),
    ),
    max_size=4,
).map(",".join)


@given(st.one_of(plain_texts, names.map(dn.build)))
def test_short_paths_give_what_the_general_code_gives(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        found = [outcome(function, text) for function in (dn.normalize, dn.parent, dn.depth)]
        patch.setattr(dn, "_split_plain", lambda text: None)
        assert [outcome(function, text) for function in (dn.normalize, dn.parent, dn.depth)] == found


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("CN=Steve Kille,O=Isode Limited,C=GB", "cn=steve   kille, o=isode limited , c=gb"),
        ("OU=Sales+CN=J.  Smith,DC=example,DC=net", "cn=j. smith + ou=sales,dc=example,dc=net"),
        (r"CN=James \"Jim\" Smith\, III,DC=net", r"CN=James \22Jim\22 Smith\2c III,DC=net"),
        (r"CN=Lu\C4\8Di\C4\87", "CN=Lučić"),
        ("CN=a;OU=b", "CN=a,OU=b"),
        ('CN="a,b"', r"CN=a\,b"),
        ("1.3.6.1.4.1.1466.0=#04024869", "1.3.6.1.4.1.1466.0=#04024869"),
        ("cn=straße", "CN=STRASSE"),
    ],
)
def test_dns_that_a_directory_treats_as_equal_have_one_normal_form(text: str, same: str) -> None:
    assert dn.normalize(text) == dn.normalize(same)


@pytest.mark.parametrize("text", ["x", "=x", "cn=a,", "cn=a,b", 'cn="a', "cn=a\\", "c n=a", "cn=#0", r"cn=\ff"])
def test_text_that_is_not_a_dn_is_refused_and_folded(text: str) -> None:
    with pytest.raises(dn.InvalidDn):
        dn.parse(text)
    assert dn.normalize_or_fold(text)
    assert dn.depth(text) == 0


def test_ancestors_are_compared_by_rdn_and_not_by_text() -> None:
    assert dn.is_below("cn=a,ou=people,dc=test", "OU=People,DC=test")
    assert dn.is_below("ou=people,dc=test", "ou=people,dc=test")
    assert not dn.is_below("cn=a,ou=notpeople,dc=test", "ou=people,dc=test")
    assert not dn.is_below(r"cn=a\,ou=people,dc=test", "ou=people,dc=test")
    assert not dn.is_below("dc=test", "ou=people,dc=test")
