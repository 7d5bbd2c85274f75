"""``tenuto dead-letter``: list and show dead letters, retry or acknowledge them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from rich import box
from rich.table import Table
from rich.text import Text

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.formatting import (
    format_duration,
    format_local_time,
    format_relative,
    format_with_age,
    one_line,
    safe_text,
)
from tenuto.cli.option_parsing import BelowOption, LimitOption, build_filters, confirm, invalid_value, read_json_option
from tenuto.cli.output import (
    Column,
    Record,
    compact_json,
    live_console,
    name_value_table,
    print_json,
    print_list,
    print_message,
    print_rich,
    print_text,
    record_heading,
    record_table,
    state_symbol,
    styled_state,
)
from tenuto.cli.parameters import argument, choice, flag, option
from tenuto.cli.work.jobs import suggest_job_list
from tenuto.cli.work.task_report import stack_section
from tenuto.errors import Invalid
from tenuto.model.triggers.parsing import parse_instant

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tenuto.app import Tenuto

Status = Literal["awaiting_intervention", "retried", "acknowledged", "all"]
Id = Annotated[str, argument("ID", "Id of the dead letter, or its beginning.")]
Ids = Annotated[list[str] | None, argument("[ID…]", "Ids of dead letters, or their beginnings.")]
AllOption = Annotated[
    bool, flag("All open dead letters, or those --where selects; shown for confirmation first.", "--all")
]
WhereOption = Annotated[
    list[str] | None,
    option(
        "CONDITION",
        "With --all: manifest=…, fingerprint=…, batch=…, until=… (an instant). Several may follow each other.",
        "--where",
    ),
]
NoteOption = Annotated[str | None, option("TEXT", "Note, stored with the dead letter.")]
YesOption = Annotated[bool, flag("With --all: no confirmation.", "--yes")]
_CONDITIONS = ("manifest", "fingerprint", "batch", "until")
_CONDITION_SEPARATOR = re.compile(r"[\s,]+(?=\w+=)")
"""Blanks or commas before the next ``name=``; others belong to a value, since a batch key may contain them."""
_MIN_ATTEMPT_WIDTH = 20
_LABEL_WIDTH = 10
_MAX_SHOWN_ATTEMPTS = 7

dead_letters = group(
    "dead-letter", "List dead letters, retry or acknowledge them.", "list --group", "retry 019a8b3c --app tasks:app"
)


# --- list and show --------------------------------------------------------------------------------------------------


@command(dead_letters, "list", "--group", "--manifest replicate-users --fingerprint f83b834f17bb -o json")
async def list_dead_letters(
    session: Session,
    grouped: Annotated[bool, flag("Counts of open dead letters by kind of failure.", "--group")] = False,
    manifest: Annotated[str | None, option("EXTERNAL_ID", "Filter by manifest.")] = None,
    batch: Annotated[str | None, option("ID", "Filter by batch.")] = None,
    fingerprint: Annotated[str | None, option("TEXT", "Filter by kind of failure.")] = None,
    status: Annotated[Status, choice("Filter by status.")] = "awaiting_intervention",
    limit: LimitOption = 50,
    below: BelowOption = None,
) -> None:
    """List dead letters, newest first; without --status, the open ones.

    Failures with the same exception at the same place of the code have the same fingerprint.
    """
    app = session.app
    batch_id = None if batch is None else await app.batches.find(batch)
    if grouped:
        kinds = await app.dead_letters.groups(manifest=manifest, batch=batch_id, limit=limit)
        await _print_kinds(session, kinds)
        return
    filters = build_filters(manifest=manifest, batch=batch_id, fingerprint=fingerprint, limit=limit, below=below)
    await print_list(
        session,
        await app.dead_letters.list(**filters, state=None if status == "all" else status),
        {
            "id": "id",
            "status": lambda row, _: styled_state(row["state"]),
            "manifest": "external_id",
            "item": "item",
            "attempts": "attempt_count",
            "when": lambda row, now: format_relative(row["dead_lettered_at"], now),
            "fingerprint": "fingerprint",
            "batch": "batch_id",
            "reason": "reason",
        },
        noun="dead letters",
        filters=filters,
        two_line_columns={
            "dead letter": lambda row, _: (
                Text.assemble(f"{state_symbol(row['state'])} ", safe_text(row["external_id"]), _item_key(row)),
                row["id"],
            ),
            "reason": lambda row, _: (Text(one_line(row["reason"], 160), style="red"), row["fingerprint"]),
            "when": lambda row, now: (
                format_relative(row["dead_lettered_at"], now),
                _attempt_count(row["attempt_count"]),
            ),
        },
        flexible=("reason",),
    )


async def _print_kinds(session: Session, kinds: Sequence[Record]) -> None:
    await print_list(
        session,
        kinds,
        {
            "fingerprint": "fingerprint",
            "count": "dead_letter_count",
            "manifests": lambda kind, _: _manifest_names(kind),
            "first": lambda kind, now: format_relative(kind["first_at"], now),
            "newest": lambda kind, now: format_relative(kind["last_at"], now),
            "newest reason": "reason",
        },
        noun="dead letters",
        two_line_columns={
            "count": lambda kind, _: (Text(f"{kind['dead_letter_count']:,}"), ""),
            "newest reason": lambda kind, _: (
                Text(one_line(kind["reason"], 160), style="red"),
                f"{kind['fingerprint']}  {_manifest_names(kind)}",
            ),
            "newest": lambda kind, now: (
                format_relative(kind["last_at"], now),
                f"first {format_relative(kind['first_at'], now)}",
            ),
        },
        flexible=("newest reason",),
    )
    if kinds and not session.as_json:
        session.print_message("list or retry one kind:")
        session.print_message(f"  tenuto dead-letter list --fingerprint {kinds[0]['fingerprint']}")
        session.print_message(f"  tenuto dead-letter retry --all --where fingerprint={kinds[0]['fingerprint']}")


def _manifest_names(kind: Record) -> str:
    more = f" and {kind['manifest_count'] - 1} more" if kind["manifest_count"] > 1 else ""
    return f"{kind['external_id']}{more}"


def _item_key(row: Record) -> str:
    """Return the key of the item unless it is only the id of its task."""
    return "" if row["item"] in ("", str(row["task_id"])) else f"  {one_line(row['item'], 30)}"


def _attempt_count(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


@command(dead_letters, "show", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def show_dead_letter(session: Session, dead_letter_id: Id) -> None:
    """Show a dead letter and compare its attempts side by side."""
    app = session.app
    found = await app.dead_letters.get(await app.dead_letters.find(dead_letter_id))
    if session.as_json:
        print_json(found)
        return
    console = live_console()
    heading = record_heading(found["state"], found["external_id"], found["id"], _item_key(found))
    attempts = found["attempts"]
    parts: list[Any] = [heading, "", name_value_table(*_facts(found, await session.now())), ""]
    if attempts:
        parts += render_attempt_diff(attempts, 80 if console is None else console.width)
        parts += stack_section(attempts[-1])
    else:
        parts.append(Text("its attempts are no longer stored", style="dim"))
    print_rich(*parts)
    if found["state"] == "awaiting_intervention":
        session.print_message("retry or acknowledge it:")
        session.print_message(f"  tenuto dead-letter retry {found['id']}")
        session.print_message(f"  tenuto dead-letter acknowledge {found['id']}")


def _facts(found: Record, now: datetime) -> list[tuple[str, Any]]:
    return [
        ("reason", found["reason"]),
        ("when", f"{format_with_age(found['dead_lettered_at'], now)} after {_attempt_count(found['attempt_count'])}"),
        ("fingerprint", found["fingerprint"]),
        ("batch", found["batch_id"]),
        ("resolved", format_with_age(found["resolved_at"], now, by=found["resolved_by"])),
        ("note", found["note"]),
        ("retried as", found["retry_task_id"] and f"task {found['retry_task_id']}"),
    ]


# --- comparison of attempts -----------------------------------------------------------------------------------------


def render_attempt_diff(attempts: Sequence[Record], width: int) -> list[RenderableType]:
    """Return the values that all attempts share, then a column per attempt with the differing values.

    As many attempts as fit the width are shown side by side; the others follow below.
    """
    facts = [_attempt_facts(attempt) for attempt in attempts]
    same = {name for name in facts[0] if len(attempts) > 1 and all(each[name] == facts[0][name] for each in facts)}
    lines: list[RenderableType] = []
    if shared := [(name, facts[0][name]) for name in facts[0] if name in same and facts[0][name]]:
        lines += [Text(f"the same in all {len(attempts)} attempts", style="bold"), name_value_table(*shared), Text("")]
    if len(attempts) > _MAX_SHOWN_ATTEMPTS:
        first, *hidden = [attempt["attempt"] for attempt in attempts[1 : 1 - _MAX_SHOWN_ATTEMPTS]]
        omitted = f"attempts {first} to {hidden[-1]} are" if hidden else f"attempt {first} is"
        lines += [Text(f"{omitted} omitted; -o json shows all", style="dim")]
        # From here on only shown attempts count: "as before" refers to the column before.
        attempts = [attempts[0], *attempts[1 - _MAX_SHOWN_ATTEMPTS :]]
        facts = [facts[0], *facts[1 - _MAX_SHOWN_ATTEMPTS :]]
    differing = [name for name in facts[0] if name not in same]
    column_count = max((width - _LABEL_WIDTH) // (_MIN_ATTEMPT_WIDTH + 2), 1)
    for start in range(0, len(attempts), column_count):
        places = range(len(attempts))[start : start + column_count]
        lines += [*([Text("")] if start else []), _attempt_diff_table(attempts, facts, places, differing, width)]
    return lines


def _attempt_facts(attempt: Record) -> dict[str, str]:
    error: Mapping[str, Any] = attempt["error"] or {}
    return {
        "input": compact_json(attempt["input"]) or "",
        "step": str(error.get("step") or ""),
        "error": str(error.get("type") or ""),
        "message": str(error.get("message") or ""),
        "reason": (attempt["reason"] or "").replace("_", " "),
        "output": compact_json(attempt["output"]) or "",
        "worker": str(attempt["worker"] or attempt["worker_id"] or ""),
    }


def _attempt_diff_table(
    attempts: Sequence[Record], facts: Sequence[dict[str, str]], places: Sequence[int], names: Sequence[str], width: int
) -> RenderableType:
    column_width = max((min(width, 160) - _LABEL_WIDTH) // len(places) - 2, _MIN_ATTEMPT_WIDTH)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("", style="dim", no_wrap=True, min_width=_LABEL_WIDTH - 2)
    for place in places:
        table.add_column(f"attempt {attempts[place]['attempt']}", overflow="fold", max_width=column_width)
    table.add_row("", *(styled_state(attempts[place]["state"]) for place in places))
    table.add_row("started", *(_start_text(attempts, place) for place in places))
    table.add_row("waited", *(_wait_text(attempts[place]) for place in places))
    table.add_row("ran", *(_duration_text(attempts, place) for place in places))
    for name in names:
        if any(facts[place][name] for place in places):
            table.add_row(name, *(_diff_cell(facts, place, name) for place in places))
    return table


def _diff_cell(facts: Sequence[dict[str, str]], place: int, name: str) -> Text:
    value = facts[place][name]
    if place and value == facts[place - 1][name]:
        return Text("as before" if value else "", style="dim")
    return Text(one_line(safe_text(value), 240), style="red" if name in ("error", "message") else "")


def _start_text(attempts: Sequence[Record], place: int) -> str:
    started: datetime | None = attempts[place]["started_at"]
    if started is None:
        return "never"
    first = attempts[0]["started_at"]
    if place == 0 or first is None:
        return format_local_time(started)
    return f"{format_duration(started - first)} after the first"


def _wait_text(attempt: Record) -> str:
    wait_end = attempt["started_at"] or attempt["ended_at"]
    return format_duration(wait_end - attempt["run_at"]) if wait_end and wait_end >= attempt["run_at"] else ""


def _duration_text(attempts: Sequence[Record], place: int) -> str:
    duration = _duration_seconds(attempts[place])
    if duration is None:
        return ""
    before = _duration_seconds(attempts[place - 1]) if place else None
    if before is None or max(duration, before) < 0.1 or max(duration, before) < 2 * min(duration, before):
        return format_duration(duration)
    return f"{format_duration(duration)} ({'longer' if duration > before else 'shorter'})"


def _duration_seconds(attempt: Record) -> float | None:
    if attempt["started_at"] is None or attempt["ended_at"] is None:
        return None
    return float((attempt["ended_at"] - attempt["started_at"]).total_seconds())


# --- retry and acknowledge ------------------------------------------------------------------------------------------


@command(
    dead_letters,
    "retry",
    "019a8b3c-1d2e --note 'the server is back'",
    "019a8b3c-1d2e --input @corrected.json --app tasks:app",
    "--all --where manifest=replicate-users fingerprint=f83b834f17bb",
)
async def retry_dead_letters(
    session: Session,
    ids: Ids = None,
    input: Annotated[
        str | None, option("JSON|@FILE|-", "Corrected input for one dead letter; requires --app.", "--input")
    ] = None,
    note: NoteOption = None,
    all: AllOption = False,
    where: WhereOption = None,
    yes: YesOption = False,
) -> int:
    """Retry dead letters, with attempts counted from one. Prints the ids of the new tasks.

    A dead letter is resolved and its task created in one transaction, so it is resolved only once. With --all, the
    selection is fixed when it is shown: later dead letters are not affected.
    """
    if all or where:
        if input is not None:
            raise _single_input_error()
        return await _resolve_all(session, ids, where, note, "retried", all=all, yes=yes)
    prefixes = _require_ids(ids)
    if input is not None and len(prefixes) > 1:
        raise _single_input_error()
    new_input = None if input is None else read_json_option(input, "--input")
    retried: list[Record] = []
    with session.as_user() as app, suggest_job_list(session):
        for prefix in prefixes:
            id = await app.dead_letters.find(prefix)
            retried.append({"id": id, "task_id": await app.dead_letters.retry(id, input=new_input, note=note)})
            if not session.as_json:
                print_text(str(retried[-1]["task_id"]))
    return session.report(
        retried, f"retried by {login_name()}; see the task with:", f"  tenuto task show {retried[-1]['task_id']}"
    )


@command(
    dead_letters,
    "acknowledge",
    "019a8b3c-1d2e --note 'booked manually'",
    "--all --where until=2031-05-17T00:00:00Z --note 'test data' --yes",
)
async def acknowledge_dead_letters(
    session: Session,
    ids: Ids = None,
    note: NoteOption = None,
    all: AllOption = False,
    where: WhereOption = None,
    yes: YesOption = False,
) -> int:
    """Acknowledge dead letters: resolve them without a retry. Their manifests may run again."""
    if all or where:
        return await _resolve_all(session, ids, where, note, "acknowledged", all=all, yes=yes)
    acknowledged: list[UUID] = []
    with session.as_user() as app:
        for prefix in _require_ids(ids):
            id = await app.dead_letters.find(prefix)
            await app.dead_letters.acknowledge(id, note=note)
            acknowledged.append(id)
            session.print_message(f"dead letter {id} acknowledged by {login_name()}")
    return session.report([{"id": id, "status": "acknowledged"} for id in acknowledged])


def _require_ids(ids: list[str] | None) -> list[str]:
    if not ids:
        remedy = "name ids from `tenuto dead-letter list`, or use --all"
        raise Invalid("no dead letter is named", code="cli.argument.missing", field="ID", remedy=remedy)
    return ids


def _single_input_error() -> Invalid:
    return Invalid(
        "--input applies to exactly one dead letter",
        code="cli.option.conflict",
        field="--input",
        remedy="name one dead letter, or omit --input",
    )


async def _resolve_all(
    session: Session,
    further_conditions: list[str] | None,
    conditions: list[str] | None,
    note: str | None,
    outcome: Literal["retried", "acknowledged"],
    *,
    all: bool,
    yes: bool,
) -> int:
    """Select dead letters, show the selection, ask for confirmation and resolve exactly the selected ones.

    ``further_conditions`` are those that follow the first after --where; the parser takes them for ids.
    """
    if not all:
        raise Invalid("--where requires --all", code="cli.option.requires_other", field="--where", remedy="add --all")
    with session.as_user() as app:
        filters = await _parse_conditions(app, [*(conditions or []), *(further_conditions or [])])
        selected = await app.dead_letters.select(**filters)
        if not selected:
            session.print_message("no matching open dead letters" if filters else "no open dead letters")
            return session.report({"selected": 0, outcome: 0})
        if not session.as_json:
            await _print_selection(session, await app.dead_letters.summary(selected), len(selected))
        action = "retry" if outcome == "retried" else "acknowledge"
        count_text = "1 dead letter" if len(selected) == 1 else f"{len(selected):,} dead letters"
        if not yes and not confirm(f"{action} {count_text}", "--all"):
            session.print_message("nothing was changed")
            return exit_codes.FAILED
        resolve = app.dead_letters.retry_selected if outcome == "retried" else app.dead_letters.acknowledge_selected
        count = await resolve(selected, note=note)
    skipped = len(selected) - count
    hint = f"  {skipped:,} skipped: already resolved, already open, or their manifest was deleted"
    messages = [f"{count:,} {outcome} by {login_name()}", *([hint] if skipped else [])]
    return session.report({"selected": len(selected), outcome: count}, *messages)


async def _parse_conditions(app: Tenuto, texts: list[str]) -> Record:
    filters: Record = {}
    for text in (part for each in texts for part in _CONDITION_SEPARATOR.split(each.strip(", \t\n"))):
        name, equals, value = text.partition("=")
        if not equals:
            remedy = "write name=value, in quotes if the value contains blanks"
            raise invalid_value(
                "--where", text, "is not a condition", code="dead_letter.condition.invalid", remedy=remedy
            )
        if name not in _CONDITIONS:
            raise Invalid(
                f"unknown filter {name!r:.60}; expected one of: {', '.join(_CONDITIONS)}",
                code="dead_letter.condition.unknown",
                field="--where",
                remedy="correct the name of the filter",
            )
        if not value:
            remedy = f"write {name}=…, or omit it"
            raise Invalid(
                f"the filter {name} has no value", code="dead_letter.condition.empty", field="--where", remedy=remedy
            )
        if name in filters:
            raise Invalid(
                f"the filter {name} is given twice",
                code="dead_letter.condition.duplicate",
                field="--where",
                remedy="give each filter once",
            )
        filters[name] = value
    if "until" in filters:
        filters["until"] = parse_instant(filters["until"], field="--where until")
    if "batch" in filters:
        filters["batch"] = await app.batches.find(filters["batch"])
    return filters


async def _print_selection(session: Session, kinds: Sequence[Record], selected_count: int) -> None:
    columns: dict[str, Column] = {
        "count": lambda kind, _: f"{kind['dead_letter_count']:,}",
        "manifest": "external_id",
        "fingerprint": "fingerprint",
        "newest": lambda kind, now: format_relative(kind["last_at"], now),
        "newest reason": "reason",
    }
    optional, flexible = ("fingerprint", "newest"), ("newest reason",)
    print_rich(record_table(kinds, columns, await session.now(), optional=optional, flexible=flexible))
    shown_count = sum(kind["dead_letter_count"] for kind in kinds)
    if shown_count < selected_count:
        print_message(f"and {selected_count - shown_count:,} of other kinds")
