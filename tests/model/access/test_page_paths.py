"""Which targets of links and redirects are pages of this service."""

from __future__ import annotations

import pytest

from tenuto.model.access.redirect_paths import is_page_path

ELSEWHERE = [
    "//host",
    "//host/items",
    "/\\host",
    "/items/\\host",
    "https://host",
    "javascript:alert(1)",
    "items",
    "",
    "/items/../keys",
    "/items/%2E%2e/keys",
    "/items/.",
    "/..//host",
    "/a\tb",
    "/a\nb",
    "/<b>",
    "/api/v1/keys",
]


@pytest.mark.parametrize("target", ["/", "/items/bolt", "/items/a..b", "/items/.hidden", "/items?q=../a#b", "/apis"])
def test_path_of_a_page_is_accepted(target: str) -> None:
    assert is_page_path(target)


@pytest.mark.parametrize("target", ELSEWHERE)
def test_another_site_and_the_api_are_refused(target: str) -> None:
    assert not is_page_path(target)
