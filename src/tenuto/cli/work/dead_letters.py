"""``tenuto dead-letter``: list and show dead letters, retry or acknowledge them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.lists import (
    MANIFEST,
    PAGE,
    build_filters,
    filter_options,
    print_count,
    print_page,
    print_window,
    take_filter,
)
from tenuto.cli.option_parsing import confirm, missing_option, option_conflict, read_json_option
from tenuto.cli.output import print_json, print_message, print_text
from tenuto.cli.parameters import Declaration, argument, choice, flag, option
from tenuto.cli.tables import (
    name_value_table,
    print_rich,
    record_heading,
    render_table,
    section_title,
    styled_state,
    terminal_width,
)
from tenuto.cli.work.jobs import suggest_job_list
from tenuto.cli.work.task_report import stack_section
from tenuto.errors import Invalid
from tenuto.model.filter_keys import DEAD_LETTER_KEYS
from tenuto.presentation.text_formats import (
    compact_json,
    count_noun,
    format_duration,
    format_local_time,
    format_with_age,
    one_line,
    safe_text,
)
from tenuto.presentation.work_views import (
    DEAD_LETTERS,
    FAILURE_GROUPS,
    SELECTED_FAILURES,
    dead_letter_item,
    run_duration,
    wait_text,
)
from tenuto.store.work.activities import ActivityDetails
from tenuto.store.work.dead_letters import DeadLetterDetails

Id = Annotated[str, argument("ID", "Id of the dead letter, or its first characters.")]
State = Literal["awaiting_intervention", "retried", "acknowledged", "all"]
RESOLVE_OPTIONS: dict[str, Declaration] = {
    "ids": argument("[ID…]", "Ids of dead letters, or their beginnings.", default=None, type=list[str]),
    "note": option("TEXT", "Note, stored with the dead letter."),
    "all": flag("All open dead letters, or those --where selects; shown for confirmation first.", "--all"),
    "where": option("FILTER", "With --all: filter such as 'manifest:mail error:~timeout created:<1d'."),
    "yes": flag("With --all: act without confirmation.", "--yes"),
}
_MIN_ATTEMPT_WIDTH = 20
_LABEL_WIDTH = 10
_MAX_SHOWN_ATTEMPTS = 7

dead_letters = group(
    "dead-letter", "List dead letters, retry or acknowledge them.", "list --group", "retry 019a8b3c --app tasks:app"
)


@command(
    dead_letters,
    "list",
    "--group",
    "--manifest replicate-users --fingerprint f83b834f17bb -o json",
    is_list=True,
    options={
        "manifest": MANIFEST,
        "batch": option("ID", "Filter by batch."),
        "fingerprint": option("TEXT", "Filter by kind of failure."),
        **PAGE,
        **filter_options(DEAD_LETTER_KEYS),
    },
)
async def list_dead_letters(
    session: Session,
    grouped: Annotated[bool, flag("Counts of open dead letters by kind of failure.", "--group")] = False,
    state: Annotated[State, choice("Filter by state.")] = "awaiting_intervention",
    **options: Any,
) -> None:
    """List dead letters, newest first; without --state, the open ones.

    Failures with the same exception at the same place of the code have the same fingerprint.
    """
    app, filter = session.app, await take_filter(session, DEAD_LETTER_KEYS, options)
    is_count, filters = options.pop("count"), build_filters(options)
    if "batch" in filters:
        filters["batch"] = await app.batches.find(filters["batch"])
    if not grouped:
        wanted = None if state == "all" else state
        if is_count:
            narrowing = {name: value for name, value in filters.items() if name not in PAGE}
            print_count(session, await app.dead_letters.count(filter, **narrowing, state=wanted))
            return
        found = await app.dead_letters.list(filter, **filters, state=wanted)
        await print_page(session, DEAD_LETTERS, found, {**filters, "where": filter} if filter.clauses else filters)
        print_window(session, filter, found, filters["limit"])
        return
    filters = {name: filters[name] for name in ("manifest", "batch", "limit") if name in filters}
    kinds = await app.dead_letters.groups(**filters)
    await print_page(session, FAILURE_GROUPS, kinds, {name: filters[name] for name in filters if name != "limit"})
    if kinds and session.output == "table":
        session.print_message(
            "list or retry one kind:",
            f"  tenuto dead-letter list --fingerprint {kinds[0].fingerprint}",
            f"  tenuto dead-letter retry --all --where fingerprint:{kinds[0].fingerprint}",
        )


@command(dead_letters, "show", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def show_dead_letter(session: Session, dead_letter_id: Id) -> None:
    """Show a dead letter and compare its attempts side by side."""
    app = session.app
    found = await app.dead_letters.get(await app.dead_letters.find(dead_letter_id))
    if session.as_json:
        print_json(found)
        return
    item = one_line(dead_letter_item(found), 30)
    heading = record_heading(found.state, found.external_id or found.name, found.id, f"  {item}" if item else "")
    parts: list[RenderableType] = [heading, "", name_value_table(*_facts(found, await session.now())), ""]
    if found.attempts:
        parts += render_attempt_diff(found.attempts, terminal_width())
        parts += stack_section(found.attempts[-1])
    else:
        parts.append(Text("its attempts are no longer stored", style="dim"))
    print_rich(*parts)
    if found.state == "awaiting_intervention":
        session.print_message(
            "retry or acknowledge it:",
            f"  tenuto dead-letter retry {found.id}",
            f"  tenuto dead-letter acknowledge {found.id}",
        )


def _facts(found: DeadLetterDetails, now: datetime) -> list[tuple[str, Any]]:
    attempts = count_noun(found.attempt_count, "attempt")
    return [
        ("job", found.name),
        ("task", found.task_id),
        ("reason", found.reason),
        ("when", f"{format_with_age(found.dead_lettered_at, now)} after {attempts}"),
        ("fingerprint", found.fingerprint),
        ("batch", found.batch_id),
        ("resolved", format_with_age(found.resolved_at, now, by=found.resolved_by)),
        ("note", found.note),
        ("retried as", found.retry_task_id and f"task {found.retry_task_id}"),
    ]


# --- comparison of attempts -----------------------------------------------------------------------------------------


def render_attempt_diff(attempts: Sequence[ActivityDetails], width: int) -> list[RenderableType]:
    """Return the values that all attempts share, then a column per attempt with the differing values.

    As many attempts as fit the width are shown side by side; the others follow below.
    """
    facts = [_attempt_facts(attempt) for attempt in attempts]
    same = {name for name in facts[0] if len(attempts) > 1 and all(each[name] == facts[0][name] for each in facts)}
    lines: list[RenderableType] = []
    if shared := [(name, facts[0][name]) for name in facts[0] if name in same and facts[0][name]]:
        lines += [*section_title(f"the same in all {len(attempts)} attempts")[1:], name_value_table(*shared), Text("")]
    if len(attempts) > _MAX_SHOWN_ATTEMPTS:
        first, *hidden = [attempt.attempt for attempt in attempts[1 : 1 - _MAX_SHOWN_ATTEMPTS]]
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


def _attempt_facts(attempt: ActivityDetails) -> dict[str, str]:
    error: dict[str, Any] = attempt.error or {}
    return {
        "input": compact_json(attempt.input) or "",
        "step": str(error.get("step") or ""),
        "error": str(error.get("type") or ""),
        "message": str(error.get("message") or ""),
        "reason": (attempt.reason or "").replace("_", " "),
        "output": compact_json(attempt.output) or "",
        "worker": str(attempt.worker or attempt.worker_id or ""),
    }


def _attempt_diff_table(
    attempts: Sequence[ActivityDetails], facts: Sequence[dict[str, str]], places: range, names: list[str], width: int
) -> RenderableType:
    column_width = max((min(width, 160) - _LABEL_WIDTH) // len(places) - 2, _MIN_ATTEMPT_WIDTH)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("", style="dim", no_wrap=True, min_width=_LABEL_WIDTH - 2)
    for place in places:
        table.add_column(f"attempt {attempts[place].attempt}", overflow="fold", max_width=column_width)
    table.add_row("", *(styled_state(attempts[place].state) for place in places))
    table.add_row("started", *(_start_text(attempts[place], attempts[0]) for place in places))
    table.add_row("waited", *(wait_text(attempts[place], attempts[place].run_at) for place in places))
    table.add_row("ran", *(_duration_text(attempts[place], attempts[max(place - 1, 0)]) for place in places))
    for name in names:
        if any(facts[place][name] for place in places):
            table.add_row(name, *(_diff_cell(facts, place, name) for place in places))
    return table


def _diff_cell(facts: Sequence[dict[str, str]], place: int, name: str) -> Text:
    value = facts[place][name]
    if place and value == facts[place - 1][name]:
        return Text("as before" if value else "", style="dim")
    return Text(one_line(safe_text(value), 240), style="red" if name in ("error", "message") else "")


def _start_text(attempt: ActivityDetails, first: ActivityDetails) -> str:
    if attempt.started_at is None:
        return "never"
    if attempt is first or first.started_at is None:
        return format_local_time(attempt.started_at)
    return f"{format_duration(attempt.started_at - first.started_at)} after the first"


def _duration_text(attempt: ActivityDetails, before: ActivityDetails) -> str:
    duration, duration_before = run_duration(attempt), run_duration(before)
    if duration is None:
        return ""
    shortest, longest = sorted((duration, duration_before or duration))
    if longest.total_seconds() < 0.1 or longest < 2 * shortest:
        return format_duration(duration)
    return f"{format_duration(duration)} ({'longer' if duration == longest else 'shorter'})"


@command(
    dead_letters,
    "retry",
    "019a8b3c-1d2e --note 'the server is back'",
    "019a8b3c-1d2e --input @corrected.json --app tasks:app",
    "--all --where 'manifest:replicate-users fingerprint:f83b834f17bb'",
    options=RESOLVE_OPTIONS,
)
async def retry_dead_letters(
    session: Session,
    input: Annotated[str | None, option("JSON|@FILE|-", "Corrected input for one dead letter; requires --app.")] = None,
    **options: Any,
) -> int:
    """Retry dead letters, with attempts counted from one. Prints the ids of the new tasks.

    A dead letter is resolved and its task created in one transaction, so it is resolved only once. With --all, the
    selection is fixed when it is shown: later dead letters are not affected.
    """
    selects = options["all"] or options["where"]
    if input is not None and (selects or len(options["ids"] or ()) > 1):
        raise option_conflict("--input", "several dead letters", "name one dead letter, or omit --input")
    if selects:
        return await _resolve_all(session, "retried", options)
    new_input = None if input is None else read_json_option(input, "--input")
    retried: list[dict[str, Any]] = []
    if input is not None:
        session.require_app()  # the job checks its input
    with session.as_user() as app, suggest_job_list(session):
        for prefix in _require_ids(options["ids"]):
            id = await app.dead_letters.find(prefix)
            task_id = await app.dead_letters.retry(id, input=new_input, note=options["note"])
            retried.append({"id": id, "task_id": task_id})
            if not session.as_json:
                print_text(str(task_id))
    return session.report(retried, f"retried by {login_name()}; see the task with:", f"  tenuto task show {task_id}")


@command(
    dead_letters,
    "acknowledge",
    "019a8b3c-1d2e --note 'booked manually'",
    "--all --where 'created:<2031-05-17' --note 'test data' --yes",
    options=RESOLVE_OPTIONS,
)
async def acknowledge_dead_letters(session: Session, **options: Any) -> int:
    """Resolve dead letters without a retry, so that their manifests may run again."""
    if options["all"] or options["where"]:
        return await _resolve_all(session, "acknowledged", options)
    acknowledged: list[dict[str, Any]] = []
    with session.as_user() as app:
        for prefix in _require_ids(options["ids"]):
            id = await app.dead_letters.find(prefix)
            await app.dead_letters.acknowledge(id, note=options["note"])
            acknowledged.append({"id": id, "state": "acknowledged"})
            session.print_message(f"dead letter {id} acknowledged by {login_name()}")
    return session.report(acknowledged)


def _require_ids(ids: list[str] | None) -> list[str]:
    if not ids:
        remedy = "name ids from `tenuto dead-letter list`, or use --all"
        raise Invalid("no dead letter is named", code="cli.argument.missing", field="ID", remedy=remedy)
    return ids


async def _resolve_all(session: Session, outcome: Literal["retried", "acknowledged"], options: dict[str, Any]) -> int:
    """Select dead letters, show the selection, ask for confirmation and resolve exactly the selected ones."""
    if not options["all"]:
        raise missing_option("--where", "--all", "add --all")
    if options["ids"]:
        raise option_conflict("ID", "--all", "name ids, or put the whole filter of --where in quotes")
    with session.as_user() as app:
        filter = await take_filter(session, DEAD_LETTER_KEYS, {"where": options["where"]})
        selected = await app.dead_letters.select(filter)
        if not selected:
            session.print_message("no matching open dead letters" if filter.clauses else "no open dead letters")
            return session.report({"selected": 0, outcome: 0})
        if not session.as_json:
            kinds = await app.dead_letters.summary(selected)
            print_rich(render_table(SELECTED_FAILURES, kinds, await session.now()))
            if others := len(selected) - sum(kind.dead_letter_count for kind in kinds):
                print_message(f"and {others:,} of other kinds")
        action = "retry" if outcome == "retried" else "acknowledge"
        if not options["yes"] and not confirm(f"{action} {count_noun(len(selected), 'dead letter')}", "--all"):
            session.print_message("nothing was changed")
            return exit_codes.FAILED
        resolve = app.dead_letters.retry_selected if outcome == "retried" else app.dead_letters.acknowledge_selected
        count = await resolve(selected, note=options["note"])
    skipped = len(selected) - count
    hints = [f"  {skipped:,} skipped: already resolved, already open, or their manifest was deleted"] if skipped else []
    return session.report({"selected": len(selected), outcome: count}, f"{count:,} {outcome} by {login_name()}", *hints)
