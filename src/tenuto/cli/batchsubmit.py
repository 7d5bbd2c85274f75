"""``tenuto batch submit``: many rows for one manifest, taken in as they are read."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli import exits
from tenuto.cli.batchwatch import follow
from tenuto.cli.frame import Session
from tenuto.cli.rows import FIELD, Format, Rows
from tenuto.errors import Invalid

if TYPE_CHECKING:
    from tenuto.app import Tenuto
    from tenuto.verbs.batches import Batch

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
    from tenuto.cli.jobs import pointing_to_the_list
    from tenuto.cli.manifests import known
    from tenuto.cli.output import show_json, show_text
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
        return exits.OK
    show_text(str(batch.id))
    left_out = f" ({found['duplicates']:,} left out: they are open already)" if found["duplicates"] else ""
    session.say(f"{found['total']:,} items of {manifest} are in{left_out}; follow them:")
    session.say(f"  tenuto batch watch {batch.id}")
    return exits.OK


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
        from tenuto.verbs.parts import SIZE

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
