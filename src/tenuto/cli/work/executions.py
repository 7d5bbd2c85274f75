"""``tenuto execution``: the runs of schedules: look at them, follow them, cancel, pause, resume and retry them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.formatting import ago, local, one_line, plain, span
from tenuto.cli.option_parsing import Below, Limit, say_if_more, where
from tenuto.cli.work import execution_view

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from rich.console import Console, RenderableType

    from tenuto.app import Tenuto
    from tenuto.diagnostics.why import Reason

Record = dict[str, Any]
State = Literal["in_progress", "completed", "failed", "cancelled"]
Id = Annotated[str, typer.Argument(metavar="ID", help="The execution's id, or the beginning of it.")]
Timeout = Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="Give up after so long.")]
_LOOK_EVERY = 0.2
_PATIENCE = 5
"""So many looks at which nothing runs, and the reason is asked for."""
_STEPS_A_SECOND = 5000
"""A plan of many thousand steps is looked at less often, so that watching does not become work."""


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    executions = group(
        root,
        "execution",
        "Look at runs of schedules, follow, cancel, pause and retry them.",
        "tenuto execution list --state failed",
        "tenuto execution watch 019a8b3c",
    )
    command(executions, "list", "tenuto execution list", "tenuto execution list --schedule nightly -o json")(
        list_executions
    )
    for word, function in (("show", show_execution), ("watch", watch), ("pause", pause), ("resume", resume)):
        command(
            executions, word, f"tenuto execution {word} 019a8b3c-1d2e", f"tenuto execution {word} 019a8b3c-1d2e -o json"
        )(function)
    command(
        executions,
        "cancel",
        "tenuto execution cancel 019a8b3c-1d2e",
        "tenuto execution cancel 019a8b3c-1d2e --reason 'wrong file'",
    )(cancel)
    command(executions, "retry", "tenuto execution retry 019a8b3c-1d2e", "tenuto execution retry 019a8b3c-1d2e --wait")(
        retry
    )


# --- looking --------------------------------------------------------------------------------------------------------


async def list_executions(
    session: Session,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    schedule: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this schedule.")] = None,
    limit: Limit = 50,
    below: Below = None,
) -> None:
    """List executions, the newest first."""
    from tenuto.cli.output import for_a_person, show, show_json, show_table
    from tenuto.cli.output import state as in_words

    narrowed = where(state=state, schedule=schedule, limit=limit, below=below)
    found = await session.app.executions.list(**narrowed)
    if session.as_json:
        show_json(found)
        return
    if not found:
        session.say("no executions yet" if len(narrowed) == 1 else "no executions like that")
        return
    now = (await session.app.open()).clock.now()
    if for_a_person():
        show(in_lines(found, now))
    else:
        show_table(
            ("id", "state", "schedule", "group", "began", "took", "by", "came to"),
            [
                (
                    row["id"],
                    in_words(present_state(row)),
                    row["schedule_name"],
                    f"{row['current_group'] + 1} of {row['total_groups']}",
                    ago(row["started_at"], now),
                    span((row["ended_at"] or now) - row["started_at"]),
                    row["initiator_name"],
                    came_to(row),
                )
                for row in found
            ],
        )
    say_if_more(session, found, limit)


def in_lines(found: Sequence[Record], now: datetime, *, named: bool = True) -> RenderableType:
    """Executions for a terminal, two lines each; without the schedule's name if that stands above."""
    from rich.text import Text

    from tenuto.cli.output import colour_of, glyph, stacked

    def row(each: Record) -> list[tuple[Any, Any]]:
        word = present_state(each)
        place = "" if word == "completed" else f" {each['current_group'] + 1} of {each['total_groups']}"
        told = {"in_progress": "running", "failed": "failed at", "cancelled": "cancelled at"}.get(word, word)
        state = Text(f"{glyph(word)} {told}{place}", style=colour_of(word))
        took = span((each["ended_at"] or now) - each["started_at"])
        return [
            (each["schedule_name"], each["id"]) if named else (each["id"], f"by {each['initiator_name']}"),
            (state, one_line(came_to(each) or "", 120)),
            (ago(each["started_at"], now), f"took {took}" if each["ended_at"] else f"{took} so far"),
        ]

    return stacked(("execution", "state", "began"), [row(each) for each in found], flexible="state")


def present_state(execution: Record) -> str:
    """Its state, told apart where the stored word does not: paused, and cancelled but not at rest yet."""
    word = execution_view.word_of_all(execution)
    return "in_progress" if word == "running" else word


def came_to(execution: Record) -> str | None:
    """How it ended, beside its state: the error, who cancelled it, or how many steps failed."""
    if execution["error"]:
        return str(execution["error"]).removeprefix("cancelled ")
    if execution["cancelled_at"] is not None:
        why = f": {execution['cancel_reason']}" if execution.get("cancel_reason") else ""
        return f"by {execution['cancel_name']}{why}"
    if execution["failed_steps"]:
        return f"{execution['failed_steps']} of {execution['total_steps']} steps failed"
    if execution["paused_at"] is not None and execution["ended_at"] is None:
        return f"by {execution['paused_by']}"
    return None


async def show_execution(session: Session, execution_id: Id) -> None:
    """Show an execution and every step: state, attempt, wait, duration, error, worker, and the id of its activity."""
    from tenuto.cli.output import for_a_person, pairs, show, show_json
    from tenuto.cli.output import state as in_words
    from tenuto.cli.work import task_report as why

    app = session.app
    found = await app.executions.get(await app.executions.find(execution_id))
    reasons = await app.executions.why(found["id"])
    if session.as_json:
        show_json({**found, "why": reasons.reasons})
        return
    from rich.text import Text

    now = (await app.open()).clock.now()
    heading = Text.assemble(
        in_words(present_state(found)), "  ", (plain(found["schedule_name"]), "bold"), "  ", (str(found["id"]), "dim")
    )
    steps = _steps_in_lines(found) if for_a_person() else _steps(found)
    show(heading, "", pairs(*_facts(found, now)), *why.in_brief(reasons, now), "", steps, *_errors(found))


def _facts(found: Record, now: datetime) -> list[tuple[str, Any]]:
    who = f"{plain(found['initiator_name'])} ({found['initiator_type'].replace('_', ' ')})"
    how = {"trigger": "when it was due", "manual": "by hand", "step": "as a step of another", "retry": "once more"}
    running = found["ended_at"] is None
    return [
        ("group", f"{found['current_group'] + 1} of {found['total_groups']}"),
        ("began", f"{local(found['started_at'])} ({ago(found['started_at'], now)}) {how[found['origin']]}, by {who}"),
        ("due", local(found["due_at"]) if found["origin"] == "trigger" else None),
        ("ended", None if running else f"{local(found['ended_at'])} ({ago(found['ended_at'], now)})"),
        ("took", f"{span(found['duration'])}{' so far' if running else ''}"),
        ("version", f"{found['version']} of the schedule"),
        ("retry of", found["retry_of"]),
        ("step of task", found["parent_task_id"]),
        ("came to", came_to(found)),
    ]


def _steps(found: Record) -> RenderableType:
    from tenuto.cli.output import fitted

    return fitted(
        ("group", "step", "state", "attempt", "waited", "ran", "worker", "activity", "error"),
        [
            (
                step["group"] + 1,
                step["name"],
                execution_view.told(execution_view.word_of(step, found)),
                step["attempt"] or None,
                "" if step["wait"] is None else span(step["wait"]),
                "" if step["duration"] is None else span(step["duration"]),
                step["worker"],
                step["activity_id"],
                (_error(step, found) or {}).get("message"),
            )
            for step in found["steps"]
        ],
    )


def _steps_in_lines(found: Record) -> RenderableType:
    """For a terminal: the step over its activity, the state over the worker, how long it ran over its wait."""
    from rich.text import Text

    from tenuto.cli.output import stacked

    width = len(str(found["total_groups"]))
    rows: list[list[tuple[Any, Any]]] = []
    last = None
    for step in found["steps"]:
        label = "" if step["group"] == last else str(step["group"] + 1)
        last = step["group"]
        state = execution_view.told(execution_view.word_of(step, found))
        if step["attempt"] > 1:
            state.append(f", attempt {step['attempt']}")
        rows.append(
            [
                (Text(f"{label:>{width}} {one_line(step['name'])}"), Text(f"{'':{width}} {step['activity_id'] or ''}")),
                (state, step["worker"]),
                (
                    None if step["duration"] is None else span(step["duration"]),
                    None if step["wait"] is None else f"waited {span(step['wait'])}",
                ),
            ]
        )
    return stacked(("step", "state", "ran"), rows, flexible="state")


def _error(step: Record, found: Record) -> Record | None:
    """Why it failed, or has failed so far; that of a step that was cut stands with the one that was to blame."""
    return step["last_error"] if execution_view.word_of(step, found) != "not run" else None


def _errors(found: Record) -> list[RenderableType]:
    from rich.text import Text

    lines: list[RenderableType] = []
    for step in found["steps"]:
        if (error := _error(step, found)) is not None:
            title = Text(f"error of {plain(step['name'])}, attempt {error['attempt']}", style="bold")
            lines += [Text(""), title, Text(f"  {plain(error['message'])}", style="red")]
            lines.append(Text(f"  see: tenuto activity show {error['activity_id']}", style="dim"))
    return lines


# --- following ------------------------------------------------------------------------------------------------------


async def watch(session: Session, execution_id: Id, timeout: Timeout = None) -> int:
    """Follow an execution to its end, live: exit 0 if it completed, 1 if it failed or was cancelled.

    In a pipe, every change is a line. As JSON, the one document at the end. Ctrl-C stops the watching only.
    """
    return await follow(session, await session.app.executions.find(execution_id), timeout)


async def follow(session: Session, id: UUID, timeout: float | None = None, began: float | None = None) -> int:
    """Draw an execution until it has ended; its exit code. The timeout counts from when the waiting began."""
    import asyncio

    from tenuto.cli.output import show_json
    from tenuto.clock import steady

    app = session.app
    waited = 0.0 if began is None else steady() - began
    try:
        async with asyncio.timeout(None if timeout is None else timeout - waited):
            ended = await (app.executions.wait(id) if session.as_json else _drawn_to_the_end(app, id))
    except TimeoutError:
        from tenuto.errors import Conflict

        raise Conflict(
            f"execution {id} has not ended after {timeout:g} s", remedy=f"go on watching: tenuto execution watch {id}"
        ) from None
    if session.as_json:
        show_json(ended)
    _say_the_end(session, ended)
    return exit_codes.OK if ended["state"] == "completed" else exit_codes.FAILED


async def _drawn_to_the_end(app: Tenuto, id: UUID) -> Record:
    from tenuto.cli.output import console_for_live

    console = console_for_live()
    return await (_line_by_line(app, id) if console is None else _live(app, id, console))


async def _live(app: Tenuto, id: UUID, console: Console) -> Record:
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=False) as live:
        async for look in _looks(app, id):
            # The last picture stays on the screen, as high as it needs to be; the others must fit.
            live.vertical_overflow = "ellipsis" if look["ended_at"] is None else "visible"
            live.update(execution_view.drawn(look, width=console.width, height=console.height), refresh=True)
    return look


async def _line_by_line(app: Tenuto, id: UUID) -> Record:
    from tenuto.cli.output import show_text

    before: Record | None = None
    async for look in _looks(app, id):
        for line in execution_view.news(before, look):
            show_text(line)
        before = look
    return look


async def _looks(app: Tenuto, id: UUID) -> AsyncIterator[Record]:
    """The execution again and again, until it has ended; with the reason, if for a while nothing of it has run."""
    import asyncio

    idle = 0
    while True:
        look = await app.executions.get(id)
        idle = 0 if any(execution_view.word_of(step, look) == "running" for step in look["steps"]) else idle + 1
        if idle >= _PATIENCE and look["ended_at"] is None:
            look["why"] = [_in_words(reason) for reason in (await app.executions.why(id)).reasons]
        yield look
        if look["ended_at"] is not None:
            return
        await asyncio.sleep(_pause(look))


def _in_words(reason: Reason) -> str:
    return f"{reason.step}: {reason.words}" if reason.step else reason.words


def _pause(look: Record) -> float:
    return float(max(_LOOK_EVERY, look["total_steps"] / _STEPS_A_SECOND))


def _say_the_end(session: Session, ended: Record) -> None:
    word, place = ended["state"], f"group {ended['current_group'] + 1} of {ended['total_groups']}"
    took = span(ended["duration"])
    if word == "completed":
        failed = came_to(ended)
        session.say(f"{execution_view.sign(word)} completed after {took}" + (f"; {failed}" if failed else ""))
        return
    why = came_to(ended)
    session.say(f"{execution_view.sign(word)} {word} at {place} after {took}" + (f": {why}" if why else ""))
    session.say(f"  run it again from there: tenuto execution retry {ended['id']}")


# --- doing ----------------------------------------------------------------------------------------------------------


async def cancel(
    session: Session,
    execution_id: Id,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for whoever wonders.")] = None,
) -> None:
    """Cancel an execution: what has not begun is removed at once, what runs is told to stop."""
    from tenuto.cli.output import show_json

    with session.as_user() as app:
        found = await app.executions.find(execution_id)
        how = await app.executions.cancel(found, reason=reason)
    if session.as_json:
        show_json({"id": found, "outcome": how, "by": login_name()})
    elif how == "cancelled":
        session.say(f"execution {found} is cancelled, by {login_name()}")
    else:
        session.say(f"execution {found} is cancelled, by {login_name()}; what runs of it has been told to stop")
        session.say(f"  see it stop: tenuto execution watch {found}")


async def pause(session: Session, execution_id: Id) -> None:
    """Let nothing more of an execution begin; what runs goes on to its end, also a schedule that runs as its step."""
    with session.as_user() as app:
        found = await app.executions.find(execution_id)
        await app.executions.pause(found)
    words = f"execution {found} is paused, by {login_name()}; go on with: tenuto execution resume {found}"
    await _done(session, found, words)


async def resume(session: Session, execution_id: Id) -> None:
    """Let a paused execution go on."""
    with session.as_user() as app:
        found = await app.executions.find(execution_id)
        await app.executions.resume(found)
    await _done(session, found, f"execution {found} goes on")


async def _done(session: Session, id: UUID, words: str) -> None:
    from tenuto.cli.output import show_json

    if session.as_json:
        show_json(await session.app.executions.get(id))
    else:
        session.say(words)


async def retry(
    session: Session,
    execution_id: Id,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end; exit 1 unless it completed.")] = False,
    timeout: Timeout = None,
) -> int:
    """Run an execution that failed or was cancelled again, from the group it came to. Prints the id of the new one.

    It follows the plan the old one began with; the old one stays as it ended.
    """
    from tenuto.cli.output import show_json, show_text
    from tenuto.cli.work.jobs import only_with_wait

    only_with_wait(timeout, wait=wait)
    with session.as_user() as app:
        found = await app.executions.find(execution_id)
        new = await app.executions.retry(found)
    if wait:
        return await follow(session, new, timeout)
    if session.as_json:
        show_json({"id": new, "retry_of": found})
    else:
        show_text(str(new))
        session.say(f"follow it with: tenuto execution watch {new}")
    return exit_codes.OK
