"""``tenuto batch submit``: many rows for one manifest, taken in as they are read.

Rows for a batch, read one by one as they are asked for: JSON lines or CSV, from a file or stdin.

Knows at which line it is, so that whoever refuses a row can say which. Holds no more than one row.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session
from tenuto.cli.work.batch_progress import follow
from tenuto.errors import Invalid

if TYPE_CHECKING:
    from tenuto.app import Tenuto
    from tenuto.operations.batches import Batch


import csv
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, TextIO

from tenuto.model import stored_values
from tenuto.operations.batch_inputs import keyed

_TOLD_EVERY = 0.2


async def submit(
    session: Session,
    manifest: Annotated[
        str, typer.Argument(metavar="MANIFEST", help="The external id of the manifest that runs them.")
    ],
    source: Annotated[
        str, typer.Option("--from", metavar="FILE|-", help="Rows: JSON lines, or CSV with a heading; - reads stdin.")
    ],
    format: Annotated[
        Format | None, typer.Option("--format", help="What the rows are. (default: by the file's name, else jsonl)")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="The field that names the item: one that is open already is left out."),
    ] = None,
    batch_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="A name of your own: submitting again with it goes on, and doubles nothing."),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="What to call the batch.")] = None,
    atomic: Annotated[
        bool, typer.Option("--atomic", help="All rows or none, in one transaction; held in memory meanwhile.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end; exit 1 unless all went well.")] = False,
) -> int:
    """Have a manifest run for every row of a file. Prints the id of the batch.

    A row is a set of the job's arguments, or the one argument the manifest's properties leave open. Rows are read as
    they are taken in. One that is refused is named by its line, with exit code 2: nothing after it is taken in, and
    what went before stands (with --atomic: nothing does). The app that has the job is named with --app.
    """
    from tenuto.cli.definitions.manifests import known
    from tenuto.cli.output import show_json, show_text
    from tenuto.cli.work.jobs import pointing_to_the_list
    from tenuto.ids import new_id

    chosen = batch_key or f"cli-{new_id().hex[-12:]}"
    with session.as_user() as app, pointing_to_the_list(session):
        async with known(app, manifest):
            stored = await app.manifests.get(manifest)
        job = session.app_with_jobs.jobs.get(stored.manifest.job)
        rows = Rows(source, format, key, drop_key=key is not None and key not in job.parameters)
        batch = await _taken_in(session, app, manifest, rows, chosen, name=name, atomic=atomic, keyed=key is not None)
    if watch:
        session.say(f"batch {batch.id}")
        return await follow(session, batch.id)
    found = await batch.progress()
    if session.as_json:
        show_json(found)
        return exit_codes.OK
    show_text(str(batch.id))
    left_out = f" ({found['duplicates']:,} left out: they are open already)" if found["duplicates"] else ""
    session.say(f"{found['total']:,} items of {manifest} are in{left_out}; follow them:")
    session.say(f"  tenuto batch watch {batch.id}")
    return exit_codes.OK


async def _taken_in(
    session: Session,
    app: Tenuto,
    manifest: str,
    rows: Rows,
    batch_key: str,
    *,
    name: str | None,
    atomic: bool,
    keyed: bool,
) -> Batch:
    """The batch of all rows. Whoever is refused or interrupted is told what is in, and how to go on."""
    import asyncio

    counter = _Counter(session, rows)
    again = (
        f"tenuto batch submit {manifest} --from {'-' if rows.name == 'stdin' else rows.name} --batch-key {batch_key}"
    )
    began = False
    try:
        inputs = await _with_the_first_checked(app, manifest, rows)
        began = True
        return await app.bulk_enqueue(
            manifest,
            counter.counting(inputs),
            key=(lambda row: row.key) if keyed else None,
            batch_key=batch_key,
            name=name,
            atomic=atomic,
        )
    except Invalid as error:
        counter.over()
        if not rows.line or error.field in (FIELD, "batch_key", "name"):
            raise
        place = rows.place if error.item is None else rows.place_at(counter.line_of(error.item))
        error.field = f"{place}: {error.field}" if error.field else place
        if began and not atomic:
            await _say_what_is_in(session, app, batch_key)
            error.remedy = f"mend the row and go on with: {again}"
        raise
    except asyncio.CancelledError:
        counter.over()
        if not atomic:
            session.say(f"interrupted; go on with: {again}")
        raise
    finally:
        counter.over()


async def _with_the_first_checked(app: Tenuto, manifest: str, rows: Rows) -> Iterator[Any]:
    """A file that does not fit at all leaves no batch behind."""
    items = iter(rows)
    try:
        first = next(items)
    except StopIteration:
        raise Invalid(f"{rows.name} holds no rows", field=FIELD, remedy="look at the file") from None
    app.manifests.dumper(await app.manifests.get(manifest))(first)
    return chain([first], items)


async def _say_what_is_in(session: Session, app: Tenuto, batch_key: str) -> None:
    id = await app.batches.find(batch_key)
    found = await app.batches.get(id)
    session.say(f"{found['total']:,} items before it are in; their batch waits for the rest")
    session.say(f"  give it up with: tenuto batch cancel {id}")


class _Counter:
    """How many rows have been read, on a terminal's last line, and where the last ones stood."""

    def __init__(self, session: Session, rows: Rows) -> None:
        from tenuto.operations.batch_inputs import SIZE

        self._shown = not session.quiet and sys.stderr.isatty()
        self._wrote = False
        self._rows = rows
        self._number = 0
        self._lines: deque[int] = deque(maxlen=SIZE)  # so many are read before the first of them is looked at

    def line_of(self, item: int) -> int:
        """Where a row began that was read lately."""
        return self._lines[item - self._number - 1]

    def counting(self, inputs: Iterator[Any]) -> Iterator[Any]:
        from tenuto.clock import steady

        told = steady()
        for number, item in enumerate(inputs, 1):
            self._number = number
            self._lines.append(self._rows.line)
            if self._shown and number % 500 == 0 and steady() - told > _TOLD_EVERY:
                told = steady()
                self._write(f"\r  {number:,} rows read …")
            yield item

    def over(self) -> None:
        """Leave the line as it was."""
        if self._wrote:
            self._write("\r\x1b[K")
            self._wrote = False

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
        self._wrote = True


Format = Literal["jsonl", "csv"]
FIELD = "--from"
STDIN = "-"
_LONGEST_CELL = 16 * 1024 * 1024
_LONGEST_LINE = 32 * 1024 * 1024


class Rows:
    """The rows of a file, in its order."""

    def __init__(self, source: str, format: Format | None, key: str | None, *, drop_key: bool) -> None:
        self._source = source
        self._format: Format = format or ("csv" if source.lower().endswith(".csv") else "jsonl")
        self._key = key
        self._drop_key = drop_key
        self.name = "stdin" if source == STDIN else source
        self.line = 0
        """Where the last row began that was given out."""

    @property
    def place(self) -> str:
        return self.place_at(self.line)

    def place_at(self, line: int) -> str:
        return f"{self.name}, line {line}"

    def __iter__(self) -> Iterator[Any]:
        with self._opened() as file:
            read: Callable[[TextIO], Iterator[Any]] = self._csv if self._format == "csv" else self._json_lines
            try:
                yield from map(self._keyed, read(file))
            except UnicodeDecodeError as error:
                self.line += 1
                raise Invalid(f"is not UTF-8: {error.reason}", field=FIELD, remedy="save it as UTF-8") from None
            except OSError as error:  # it was there, and what is in it cannot be had
                raise self._unreadable(error) from None

    @contextmanager
    def _opened(self) -> Iterator[TextIO]:
        if self._source == STDIN:
            yield sys.stdin
            return
        with ExitStack() as stack:
            try:
                file = stack.enter_context(Path(self._source).open(encoding="utf-8-sig", newline=""))
            except OSError as error:
                raise self._unreadable(error) from None
            yield file

    def _unreadable(self, error: OSError) -> Invalid:
        return Invalid(f"{self._source} cannot be read: {error.strerror}", field=FIELD, remedy="look at the path")

    def _lines(self, file: TextIO) -> Iterator[str]:
        """Line by line; a file without line ends, or a device without an end, is not held in memory."""
        for line in iter(lambda: file.readline(_LONGEST_LINE + 1), ""):
            if len(line) > _LONGEST_LINE:
                self.line += 1
                raise Invalid(f"is longer than {_LONGEST_LINE:,} characters", field=FIELD, remedy="write shorter rows")
            yield line

    def _json_lines(self, file: TextIO) -> Iterator[Any]:
        for number, text in enumerate(self._lines(file), 1):
            self.line = number
            if not text.strip():
                continue
            try:
                yield stored_values.loads(text)
            except (ValueError, RecursionError) as error:
                why = str(error).partition(": line ")[0]
                remedy = "write one JSON value a line; of a list, `jq -c '.[]'` makes such lines"
                raise Invalid(f"is not JSON: {why}", remedy=remedy) from None

    def _csv(self, file: TextIO) -> Iterator[Any]:
        csv.field_size_limit(_LONGEST_CELL)
        lines = csv.reader(self._lines(file), strict=True)
        try:
            names = next(lines, [])
            self.line = 1
            if len(set(names)) < len(names) or not all(names):
                raise Invalid(
                    "is not a row of different names", remedy="begin a CSV file with the names of its columns"
                )
            begins = lines.line_num + 1
            for cells in lines:
                self.line, begins = begins, lines.line_num + 1
                if not cells:
                    continue
                if len(cells) > len(names):
                    raise Invalid(
                        f"has {len(cells)} cells, and there are {len(names)} columns",
                        remedy="put cells with commas in quotes",
                    )
                # An empty cell says nothing: the job's default holds.
                yield {name: cell for name, cell in zip(names, cells, strict=False) if cell != ""}
        except csv.Error as error:
            self.line = max(lines.line_num, 1)
            raise Invalid(f"is not CSV: {error}", remedy="put cells with quotes or line ends in quotes") from None

    def _keyed(self, value: Any) -> Any:
        return keyed(value, self._key, drop=self._drop_key, remedy="give every row one, or leave --key out")
