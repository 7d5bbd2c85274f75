"""The past of a schedule: its changes, and the ledger of its due instants. Changes nothing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from tenuto.cli.command import Session, command
from tenuto.cli.definitions.definition_views import show_history
from tenuto.cli.formatting import local, span
from tenuto.cli.option_parsing import Limit, where
from tenuto.errors import Invalid

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
DecisionWord = Literal["fired", "queued", "coalesced", "skipped", "missed"]


def add_to(schedules: typer.Typer) -> None:
    """Put the commands into the group."""
    command(schedules, "history", "tenuto schedule history nightly", "tenuto schedule history nightly --limit 5")(
        history
    )
    command(
        schedules,
        "ledger",
        "tenuto schedule ledger nightly",
        "tenuto schedule ledger nightly --decision skipped",
        "tenuto schedule ledger --limit 200 -o json",
    )(ledger)


async def history(session: Session, name: Name, limit: Limit = 20) -> None:
    """Show every change of a schedule: who, when, why, and what was and what is; also of one that was deleted."""
    from tenuto.cli.definitions.schedules import known

    async with known(session, session.app, name):
        found = await session.app.schedules.versions(name, limit=limit)
    await show_history(session, found, limit, known_by="name")


async def ledger(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only of this schedule.")] = None,
    decision: Annotated[DecisionWord | None, typer.Option(help="Only those decided so.")] = None,
    before: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Only those due before, as 2031-05-17T12:00:00Z.")
    ] = None,
    below: Annotated[
        str | None, typer.Option(metavar="ID", help="With --before: and those due just then below this row.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """Show what became of every due instant, the newest first: what was decided, why, when and by whom."""
    from tenuto.cli.definitions.schedules import known
    from tenuto.cli.output import for_a_person, show, show_json, show_table, stacked
    from tenuto.cli.output import state as in_words
    from tenuto.model.triggers.parsing import instant

    if below is not None and before is None:
        raise Invalid(
            "goes with --before",
            field="--below",
            remedy="add --before with the instant that row was due at; a full page ends with both",
        )
    until = None if before is None else instant(before, field="--before")
    async with known(session, session.app, name or ""):
        found = await session.app.schedules.ledger(
            name, before=until, decision=decision, **where(below=below, limit=limit)
        )
    if session.as_json:
        show_json(found)
        return
    if not found:
        session.say("nothing has been due yet" if decision is None and before is None else "nothing like that")
        return
    if for_a_person():
        rows = [
            [
                (local(row["due_at"]), "" if row["until"] is None else f"up to {local(row['until'])}"),
                (in_words(row["decision"]), _why(row)),
                (row["execution_id"] or "no execution", _ledger_note(row, named=name is not None)),
            ]
            for row in found
        ]
        show(stacked(("due", "decision", "execution"), rows, flexible="decision"))
    else:
        show_table(
            ("due", "until", "schedule", "decision", "why", "decided", "by", "execution"),
            [
                (
                    local(row["due_at"]),
                    local(row["until"]),
                    row["schedule_name"],
                    in_words(row["decision"]),
                    _why(row),
                    local(row["decided_at"]),
                    row["decided_by"],
                    row["execution_id"],
                )
                for row in found
            ],
        )
    if len(found) == limit:
        session.say(f"there may be more: add --before {found[-1]['due_at'].isoformat()} --below {found[-1]['id']}")


def _why(row: dict[str, Any]) -> str | None:
    if row["origin"] == "manual":
        return f"by hand: {row['reason']}" if row["reason"] else "by hand"
    return row["reason"] or None


def _ledger_note(row: dict[str, Any], *, named: bool) -> str:
    late = row["decided_at"] - row["due_at"]
    note = f"{span(late)} later, " if row["origin"] == "trigger" and late.total_seconds() >= 1 else ""
    return f"{'' if named else row['schedule_name'] + ', '}{note}by {row['decided_by']}"
