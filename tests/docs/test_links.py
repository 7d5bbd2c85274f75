"""Links and images of the documentation resolve, and every page can be reached from the README."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors, images, links, page_name, pages


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_relative_links_of_page_resolve(page: Path) -> None:
    broken = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_no_page_is_empty() -> None:
    assert [page_name(page) for page in pages() if not page.read_text(encoding="utf-8").strip()] == []


def test_images_exist_and_load_nothing_from_other_servers() -> None:
    shown = {(page.parent / image).resolve() for page in pages() for image in images(page)}
    assert ROOT / "docs" / "execution.svg" in shown
    for picture in shown:
        assert b"url(http" not in picture.read_bytes()


def test_every_page_is_reachable_from_the_readme() -> None:
    start = ROOT / "README.md"
    reached, pending = {start}, [start]
    while pending:
        page = pending.pop()
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_file() and target not in reached:
                reached.add(target)
                pending.append(target)
    assert {page_name(page) for page in set(pages()) - reached} == set()
