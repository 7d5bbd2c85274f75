"""The commands of the guides of identity synchronisation work, with the output that the pages show."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT
from tests.identity.docs.page_session import PageSession
from tests.support.temp_dirs import new_temp_dir

GUIDES = ROOT / "docs" / "how-to"
EXAMPLE = ROOT / "examples" / "nightly_hr_sync"
NIGHT = "tenuto schedule run 'Nightly HR Sync' --wait"


@pytest.fixture
def session(url: str) -> Iterator[PageSession]:
    """Terminals beside a running service, with the definitions of the example."""
    folder = new_temp_dir("tenuto-guide-")
    (folder / "home" / "files").mkdir(parents=True)
    shutil.copy(EXAMPLE / "nightly.yaml", folder)
    shutil.copy(EXAMPLE / "people.csv", folder / "home" / "files")
    session = PageSession(folder, url)
    try:
        session.run("tenuto apply nightly.yaml")
        session.start_service()
        yield session
    finally:
        session.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_commands_of_preview_guide_show_what_the_page_says(session: PageSession) -> None:
    session.follow(GUIDES / "preview-identity.md")
    # there are differences
    assert session.failures == ["tenuto plan changed.yaml", "tenuto plan changed.yaml --preview"]
    assert not (session.folder / "home" / "files" / "ad.csv").exists()


def test_commands_of_held_deletion_guide_show_what_the_page_says(session: PageSession) -> None:
    people = session.folder / "home" / "files" / "people.csv"
    header = people.read_text(encoding="utf-8").splitlines()[0]
    columns = header.split(",")
    rows = []
    for number in range(1, 31):
        values = {"employee_id": str(1000 + number), "first": "Person", "last": str(number), "starts": "2020-01-01"}
        values["mail"] = f"person{number}@example.org"
        rows.append(",".join(values.get(column, "") for column in columns))
    people.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    assert "● Nightly HR Sync: completed" in session.run(NIGHT)
    people.write_text("\n".join([header, *rows[:2], ""]), encoding="utf-8")
    session.run(NIGHT)
    session.follow(GUIDES / "held-deletions.md")
    assert session.failures == [NIGHT, NIGHT]  # held by the import, then by the sync
