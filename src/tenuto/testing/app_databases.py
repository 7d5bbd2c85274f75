"""An app of the program under test, pointed at a database of the test's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenuto.app import Tenuto


@contextmanager
def on_database(app: Tenuto, url: str, *, home: Path | str | None = None) -> Iterator[Tenuto]:
    """The same app on another database, for as long as the block lasts. It must be closed at both ends of it."""
    before = app.settings
    other = {"database": url} if home is None else {"database": url, "home": Path(home)}
    app.settings = before.model_copy(update=other)
    try:
        yield app
    finally:
        app.settings = before
