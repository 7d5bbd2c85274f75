"""Links lead somewhere, and every page can be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors, images, links, name, pages


@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_relative_link_resolves(page: Path) -> None:
    broken = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_picture_is_there_and_fetches_nothing_from_elsewhere() -> None:
    shown = {(page.parent / image).resolve() for page in pages() for image in images(page)}
    assert ROOT / "docs" / "rail.svg" in shown
    for picture in shown:
        assert "url(http" not in picture.read_text(encoding="utf-8")


def test_every_page_is_reached_from_the_readme() -> None:
    start = ROOT / "README.md"
    seen, ahead = {start}, [start]
    while ahead:
        page = ahead.pop()
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_file() and target not in seen:
                seen.add(target)
                ahead.append(target)
    assert {name(page) for page in pages()} - {name(page) for page in seen if page.is_relative_to(ROOT)} == set()
