"""``tenuto dead-letter``: what failed for good: look at it, run it again, or say that it has been seen to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.formatting import ago, local, one_line, plain
from tenuto.cli.option_parsing import Below, Limit, say_if_more, where
from tenuto.errors import Invalid

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from tenuto.app import Tenuto

Record = dict[str, Any]
Status = Literal["awaiting_intervention", "retried", "acknowledged", "all"]
Id = Annotated[str, typer.Argument(metavar="ID", help="The letter's id, or the beginning of it.")]
Chosen = Annotated[
    list[str] | None, typer.Argument(metavar="[ID…]", help="The letters' ids, or the beginnings of them.")
]
All = Annotated[bool, typer.Option("--all", help="All open ones, or those --where names: shown and asked for first.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="With --all: manifest=…, fingerprint=…, batch=…, until=… (an instant). Give several, one after the other.",
    ),
]
Note = Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the record.")]
Yes = Annotated[bool, typer.Option("--yes", help="With --all: do not ask.")]
_CONDITIONS = ("manifest", "fingerprint", "batch", "until")
_NEXT_CONDITION = re.compile(r"[\s,]+(?=\w+=)")
"""Between two conditions in one text. What else is between blanks or commas belongs to a value: a key may have them."""


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    letters = group(
        root,
        "dead-letter",
        "Work through what failed for good.",
        "tenuto dead-letter list --group",
        "tenuto dead-letter retry 019a8b3c --app tasks:app",
    )
    command(
        letters,
        "list",
        "tenuto dead-letter list --group",
        "tenuto dead-letter list --manifest replicate-users --fingerprint f83b834f17bb -o json",
    )(list_letters)
    command(letters, "show", "tenuto dead-letter show 019a8b3c-1d2e", "tenuto dead-letter show 019a8b3c-1d2e -o json")(
        show_letter
    )
    command(
        letters,
        "retry",
        "tenuto dead-letter retry 019a8b3c-1d2e --note 'the server is back'",
        "tenuto dead-letter retry 019a8b3c-1d2e --input @mended.json --app tasks:app",
        "tenuto dead-letter retry --all --where manifest=replicate-users fingerprint=f83b834f17bb",
    )(retry)
    command(
        letters,
        "acknowledge",
        "tenuto dead-letter acknowledge 019a8b3c-1d2e --note 'booked by hand'",
        "tenuto dead-letter acknowledge --all --where until=2031-05-17T00:00:00Z --note 'test data' --yes",
    )(acknowledge)


# --- looking --------------------------------------------------------------------------------------------------------


async def list_letters(
    session: Session,
    by_kind: Annotated[bool, typer.Option("--group", help="Count the open ones by the kind of failure.")] = False,
    manifest: Annotated[str | None, typer.Option(metavar="EXTERNAL_ID", help="Only those of this manifest.")] = None,
    batch: Annotated[str | None, typer.Option(metavar="ID", help="Only those of this batch.")] = None,
    fingerprint: Annotated[str | None, typer.Option(metavar="TEXT", help="Only failures of this kind.")] = None,
    status: Annotated[Status, typer.Option(help="Only those that stand so.")] = "awaiting_intervention",
    limit: Limit = 50,
    below: Below = None,
) -> None:
    """List dead letters, the newest first: those that wait for somebody to decide, unless --status says otherwise.

    Failures with the same exception at the same place of your code have the same fingerprint.
    """
    from tenuto.cli.output import show_json

    app = session.app
    of_batch = None if batch is None else await app.batches.find(batch)
    now = (await app.open()).clock.now()
    if by_kind:
        kinds = await app.dead_letters.groups(manifest=manifest, batch=of_batch, limit=limit)
        if session.as_json:
            show_json(kinds)
        else:
            _show_kinds(session, kinds, now)
        return
    narrowed = where(manifest=manifest, batch=of_batch, fingerprint=fingerprint, limit=limit, below=below)
    found = await app.dead_letters.list(**narrowed, status=None if status == "all" else status)
    if session.as_json:
        show_json(found)
    elif not found:
        session.say("no dead letters" if len(narrowed) == 1 else "no dead letters like that")
    else:
        _show_letters(found, now)
        say_if_more(session, found, limit)


def _show_kinds(session: Session, kinds: Sequence[Record], now: datetime) -> None:
    from rich.text import Text

    from tenuto.cli.output import for_a_person, show, show_table, stacked

    if not kinds:
        session.say("no dead letters")
        return
    if for_a_person():
        rows: list[list[tuple[Any, Any]]] = [
            [
                (Text(f"{kind['letters']:,}"), ""),
                (Text(one_line(kind["reason"], 160), style="red"), f"{kind['fingerprint']}  {_manifests(kind)}"),
                (ago(kind["last_at"], now), f"first {ago(kind['first_at'], now)}"),
            ]
            for kind in kinds
        ]
        show(stacked(("letters", "the newest says", "newest"), rows, flexible="the newest says"))
    else:
        show_table(
            ("fingerprint", "letters", "manifests", "first", "newest", "the newest says"),
            [
                (
                    kind["fingerprint"],
                    kind["letters"],
                    _manifests(kind),
                    ago(kind["first_at"], now),
                    ago(kind["last_at"], now),
                    kind["reason"],
                )
                for kind in kinds
            ],
        )
    session.say("look at one kind, run it again:")
    session.say(f"  tenuto dead-letter list --fingerprint {kinds[0]['fingerprint']}")
    session.say(f"  tenuto dead-letter retry --all --where fingerprint={kinds[0]['fingerprint']}")


def _manifests(kind: Record) -> str:
    more = f" and {kind['manifests'] - 1} more" if kind["manifests"] > 1 else ""
    return f"{kind['external_id']}{more}"


def _show_letters(found: Sequence[Record], now: datetime) -> None:
    from rich.text import Text

    from tenuto.cli.output import for_a_person, glyph, show, show_table, stacked
    from tenuto.cli.output import state as in_words

    if for_a_person():
        rows: list[list[tuple[Any, Any]]] = [
            [
                (Text.assemble(f"{glyph(row['status'])} ", plain(row["external_id"]), _item(row)), row["id"]),
                (Text(one_line(row["reason"], 160), style="red"), row["fingerprint"]),
                (ago(row["dead_lettered_at"], now), _attempts(row["attempts"])),
            ]
            for row in found
        ]
        show(stacked(("letter", "why", "when"), rows, flexible="why"))
        return
    show_table(
        ("id", "status", "manifest", "item", "attempts", "when", "fingerprint", "batch", "reason"),
        [
            (
                row["id"],
                in_words(row["status"]),
                row["external_id"],
                row["item"],
                row["attempts"],
                ago(row["dead_lettered_at"], now),
                row["fingerprint"],
                row["batch_id"],
                row["reason"],
            )
            for row in found
        ],
    )


def _item(row: Record) -> str:
    """The item's key, if it has one of its own."""
    return "" if row["item"] in ("", str(row["task_id"])) else f"  {one_line(row['item'], 30)}"


def _attempts(number: int) -> str:
    return "1 attempt" if number == 1 else f"{number} attempts"


async def show_letter(session: Session, letter_id: Id) -> None:
    """Show a dead letter and all its attempts side by side: what was the same, and what was different."""
    from rich.text import Text

    from tenuto.cli.output import console_for_live, pairs, show, show_json
    from tenuto.cli.output import state as in_words
    from tenuto.cli.work import attempt_diff, task_report

    app = session.app
    found = await app.dead_letters.get(await app.dead_letters.find(letter_id))
    if session.as_json:
        show_json(found)
        return
    now = (await app.open()).clock.now()
    console = console_for_live()
    heading = Text.assemble(
        in_words(found["status"]), "  ", (plain(found["external_id"]), "bold"), _item(found), "  ",
        (str(found["id"]), "dim"),
    )  # fmt: skip
    attempts = found["tried"]
    parts: list[Any] = [heading, "", pairs(*_facts(found, now)), ""]
    if attempts:
        parts += attempt_diff.compared(attempts, 80 if console is None else console.width)
        parts += task_report.stack_of(attempts[-1])
    else:
        parts.append(Text("its attempts are no longer on record", style="dim"))
    show(*parts)
    if found["status"] == "awaiting_intervention":
        session.say("run it again, or say that it has been seen to:")
        session.say(f"  tenuto dead-letter retry {found['id']}")
        session.say(f"  tenuto dead-letter acknowledge {found['id']}")


def _facts(found: Record, now: datetime) -> list[tuple[str, Any]]:
    when = f"{local(found['dead_lettered_at'])} ({ago(found['dead_lettered_at'], now)})"
    resolved = None
    if found["resolved_at"] is not None:
        resolved = f"{local(found['resolved_at'])} ({ago(found['resolved_at'], now)}) by {found['resolved_name']}"
    return [
        ("why", found["reason"]),
        ("when", f"{when} after {_attempts(found['attempts'])}"),
        ("kind", found["fingerprint"]),
        ("batch", found["batch_id"]),
        ("resolved", resolved),
        ("note", found["note"]),
        ("runs as", found["retry_task_id"] and f"task {found['retry_task_id']}"),
    ]


# --- deciding -------------------------------------------------------------------------------------------------------


async def retry(
    session: Session,
    ids: Chosen = None,
    given: Annotated[
        str | None,
        typer.Option("--input", metavar="JSON|@FILE|-", help="Run it with this input instead; needs --app."),
    ] = None,
    note: Note = None,
    everything: All = False,
    conditions: Where = None,
    yes: Yes = False,
) -> int:
    """Run what failed for good again, its attempts counted from nothing. Prints the id of the new task.

    The letter is closed and names the new task, in one transaction: of two who decide at once, one does. With --all,
    what is selected is shown and stays selected: letters that come in meanwhile are not touched.
    """
    from tenuto.cli.definitions.manifest_options import json_object
    from tenuto.cli.output import show_json, show_text
    from tenuto.cli.work.jobs import pointing_to_the_list, text_given

    if everything or conditions:
        if given is not None:
            raise Invalid("is for one letter", field="--input", remedy="leave it out, or name the letter")
        return await _all(session, ids, conditions, note, "retried", everything=everything, yes=yes)
    letters = _some(ids)
    if given is not None and len(letters) > 1:
        raise Invalid("is for one letter", field="--input", remedy="name one letter")
    input = None if given is None else json_object(text_given(given, "--input"), "--input")
    done: list[Record] = []
    with session.as_user() as app, pointing_to_the_list(session):
        for each in letters:
            id = await app.dead_letters.find(each)
            done.append({"id": id, "task_id": await app.dead_letters.retry(id, input=input, note=note)})
            if not session.as_json:
                show_text(str(done[-1]["task_id"]))
    if session.as_json:
        show_json(done)
    else:
        session.say(f"runs again, by {login_name()}; follow it with:")
        session.say(f"  tenuto task show {done[-1]['task_id']}")
    return exit_codes.OK


async def acknowledge(
    session: Session,
    ids: Chosen = None,
    note: Note = None,
    everything: All = False,
    conditions: Where = None,
    yes: Yes = False,
) -> int:
    """Say that somebody has seen to it: the letter is closed, nothing is run, and its manifest may run again."""
    from tenuto.cli.output import show_json

    if everything or conditions:
        return await _all(session, ids, conditions, note, "acknowledged", everything=everything, yes=yes)
    done: list[UUID] = []
    with session.as_user() as app:
        for each in _some(ids):
            id = await app.dead_letters.find(each)
            await app.dead_letters.acknowledge(id, note=note)
            done.append(id)
            session.say(f"dead letter {id} is acknowledged, by {login_name()}")
    if session.as_json:
        show_json([{"id": id, "status": "acknowledged"} for id in done])
    return exit_codes.OK


def _some(ids: list[str] | None) -> list[str]:
    if not ids:
        raise Invalid(
            "says which letter, and none is there", field="ID", remedy="`tenuto dead-letter list` shows them; or --all"
        )
    return ids


# --- many at once ---------------------------------------------------------------------------------------------------


async def _all(
    session: Session,
    words: list[str] | None,
    conditions: list[str] | None,
    note: str | None,
    becomes: Literal["retried", "acknowledged"],
    *,
    everything: bool,
    yes: bool,
) -> int:
    """Select, show, ask, and do just that."""
    from tenuto.cli.output import show_json

    if not everything:
        raise Invalid("goes with --all", field="--where", remedy="add --all")
    with session.as_user() as app:
        narrowed = await _conditions(app, [*(conditions or []), *(words or [])])
        chosen = await app.dead_letters.select(**narrowed)
        if not chosen:
            session.say("no open dead letters like that" if narrowed else "no open dead letters")
            if session.as_json:
                show_json({"selected": 0, becomes: 0})
            return exit_codes.OK
        if not session.as_json:
            _show_selection(await app.dead_letters.summary(chosen), len(chosen), (await app.open()).clock.now())
        if not yes and not _confirmed(len(chosen), becomes):
            session.say("nothing was changed")
            return exit_codes.FAILED
        do = app.dead_letters.retry_these if becomes == "retried" else app.dead_letters.acknowledge_these
        done = await do(chosen, note=note)
    if session.as_json:
        show_json({"selected": len(chosen), becomes: done})
        return exit_codes.OK
    what = "run again" if becomes == "retried" else "are acknowledged"
    session.say(f"{done:,} {what}, by {login_name()}")
    if done < len(chosen):
        session.say(
            f"  {len(chosen) - done:,} were left out: resolved meanwhile, open already, or their manifest is gone"
        )
    return exit_codes.OK


async def _conditions(app: Tenuto, given: list[str]) -> Record:
    from tenuto.model.triggers.parsing import instant

    found: Record = {}
    for each in (part for text in given for part in _NEXT_CONDITION.split(text.strip(", \t\n"))):
        name, equals, value = each.partition("=")
        if not equals:
            raise Invalid(
                f"{each!r:.60} is no condition", field="--where", remedy="write name=value, in quotes if it has blanks"
            )
        if name not in _CONDITIONS:
            names = ", ".join(_CONDITIONS)
            raise Invalid(f"{name!r:.60} is nothing a letter has", field="--where", remedy=f"use one of {names}")
        if not value:
            raise Invalid(f"says no {name}", field="--where", remedy=f"write {name}=…, or leave it out")
        if name in found:
            raise Invalid(f"says {name} twice", field="--where", remedy="say it once")
        found[name] = value
    if "until" in found:
        found["until"] = instant(found["until"], field="--where until")
    if "batch" in found:
        found["batch"] = await app.batches.find(found["batch"])
    return found


def _show_selection(kinds: Sequence[Record], number: int, now: datetime) -> None:
    from tenuto.cli.output import show_table

    show_table(
        ("letters", "manifest", "kind", "newest", "the newest says"),
        [
            (
                f"{kind['letters']:,}",
                kind["external_id"],
                kind["fingerprint"],
                ago(kind["last_at"], now),
                kind["reason"],
            )
            for kind in kinds
        ],
        spare=("kind", "newest"),
        flexible=("the newest says",),
    )
    told = sum(kind["letters"] for kind in kinds)
    if told < number:
        from tenuto.cli.output import talk

        talk(f"and {number - told:,} of other kinds")


def _confirmed(number: int, becomes: str) -> bool:
    import sys

    letters = "1 dead letter" if number == 1 else f"{number:,} dead letters"
    question = f"run {letters} again" if becomes == "retried" else f"acknowledge {letters}"
    if not sys.stdin.isatty():
        raise Invalid(f"would {question}, and nobody is there to be asked", field="--all", remedy="add --yes")
    return typer.confirm(f"{question}?", err=True)
