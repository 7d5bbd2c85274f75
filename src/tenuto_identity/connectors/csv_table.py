"""The rows of a CSV file that is written: in a private temporary database, so that memory does not grow with the file.

Rows keep their order and their text; the cells of a row are parsed when it is changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from tenuto_identity.connectors.csv_reader import Row

RowKey = tuple[str, str]
"""Object type and canonical anchor."""
_INSERT = "INSERT INTO rows (type, anchor, text) VALUES (?, ?, ?)"


class DuplicateRow(Exception):
    """Two rows have the same key."""


class CsvTable:
    """The whole file, for writing."""

    def __init__(
        self,
        header: Sequence[str],
        *,
        line_end: str = "\r\n",
        has_bom: bool = False,
        header_text: str = "",
        trailer: Row | None = None,
    ) -> None:
        self.header = list(header)
        self.line_end = line_end
        self.has_bom = has_bom
        self.header_text = header_text
        self.trailer = trailer
        self.is_changed = False
        self.columns: dict[str, list[int]] = {}
        """Positions of the columns of each name."""
        for index, name in enumerate(self.header):
            self.columns.setdefault(name, []).append(index)
        # Without a name: a file that only this process can open, and that is gone when it ends.
        self._rows = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._rows.execute("PRAGMA journal_mode = OFF")
        self._rows.execute("PRAGMA synchronous = OFF")
        self._rows.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, type TEXT, anchor TEXT, text BLOB NOT NULL)")
        self._rows.execute("CREATE UNIQUE INDEX rows_by_key ON rows (type, anchor)")

    def close(self) -> None:
        """Drop the rows."""
        self._rows.close()

    def load(self, rows: Iterable[tuple[RowKey | None, str]]) -> None:
        """Add the rows of the file in order; those without a key cannot be changed."""
        last: RowKey | None = None

        def records() -> Iterator[tuple[str | None, str | None, bytes]]:
            nonlocal last
            for last, text in rows:
                yield (*(last or (None, None)), _encode(text))

        self._rows.execute("BEGIN")
        try:
            self._rows.executemany(_INSERT, records())
        except sqlite3.IntegrityError:
            raise DuplicateRow(last[1] if last else "") from None
        self._rows.execute("COMMIT")

    def find(self, key: RowKey) -> str | None:
        """Return the text of a row."""
        found = self._rows.execute("SELECT text FROM rows WHERE type = ? AND anchor = ?", key).fetchone()
        return None if found is None else _decode(found[0])

    def add(self, key: RowKey, text: str) -> None:
        """Add a row at the end."""
        self._rows.execute(_INSERT, (*key, _encode(text)))
        self.is_changed = True

    def change(self, key: RowKey, text: str) -> None:
        """Replace the text of a row."""
        self._rows.execute("UPDATE rows SET text = ? WHERE type = ? AND anchor = ?", (_encode(text), *key))
        self.is_changed = True

    def remove(self, key: RowKey) -> None:
        """Remove a row."""
        self._rows.execute("DELETE FROM rows WHERE type = ? AND anchor = ?", key)
        self.is_changed = True

    def texts(self) -> Iterator[str]:
        """Yield the texts of all rows in order."""
        for (text,) in self._rows.execute("SELECT text FROM rows ORDER BY number"):
            yield _decode(text)


def _encode(text: str) -> bytes:
    # Bytes that the encoding of the file does not know are lone surrogates, which a text of the database cannot hold.
    return text.encode("utf-8", "surrogatepass")


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")
