"""``tenuto activity``: list and show activities, the records of past attempts."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tenuto.cli.command import Session, command, group, top_level
from tenuto.cli.formatting import format_duration, format_local_time, format_relative
from tenuto.cli.option_parsing import (
    BelowOption,
    JobFilter,
    LimitOption,
    QueueFilter,
    TagFilter,
    argument,
    build_filters,
    flag,
)
from tenuto.cli.output import Column, name_value_table, print_json, print_list, print_rich, record_heading, styled_state
from tenuto.cli.work import task_report

Status = Literal["completed", "completed_with_warning", "completed_with_error", "failed", "cancelled"]

activities = group(
    top_level,
    "activity",
    "List and show past attempts.",
    "tenuto activity list --state failed",
    "tenuto activity show 019a8b3c --log",
)


@command(activities, "list", "--state failed", "--name resize --limit 10 -o json")
async def list_activities(
    session: Session,
    state: Annotated[Status | None, typer.Option(help="Filter by status.")] = None,
    name: JobFilter = None,
    queue: QueueFilter = None,
    tag: TagFilter = None,
    limit: LimitOption = 50,
    below: BelowOption = None,
) -> None:
    """List past attempts, newest first.

    The sign ↻ marks attempts after which the task was retried.
    """
    filters = build_filters(state=state, name=name, queue=queue, tag=tag, limit=limit, below=below)
    columns: dict[str, Column] = {
        "id": "id",
        "status": lambda row, _: styled_state(row["status"]),
        "name": "name",
        "attempt": lambda row, _: f"{row['attempt']}{'' if row['final'] else ' ↻'}",
        "ended": lambda row, now: format_relative(row["ended_at"], now),
        "ran": lambda row, _: format_duration(row["ended_at"] - row["started_at"]) if row["started_at"] else "",
        "worker": "worker",
        "error": lambda row, _: task_report.error_summary(row["error"]),
    }
    await print_list(
        session,
        await session.app.activities(**filters),
        columns,
        noun="activities",
        filters=filters,
        optional=("worker", "ran", "error", "attempt"),
        flexible=("error", "name"),
    )


@command(activities, "show", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def show_activity(
    session: Session,
    activity_id: Annotated[str, argument("ID", "Id of the activity, or its beginning.")],
    log: Annotated[bool, flag("The whole log.", "--log")] = False,
) -> None:
    """Show one attempt: scheduled, running or ended."""
    record = await session.app.activity(await session.app.find(activity_id))
    if session.as_json:
        print_json(record)
        return
    now = await session.now()
    started, ended = record["started_at"], record["ended_at"]
    facts = [
        ("task", f"{record['task_id']}, attempt {record['attempt']}"),
        ("reason", (record["reason"] or "").replace("_", " ")),
        ("then", "retried" if ended and not record["final"] else None),
        *task_report.task_facts(record, now),
        ("worker", record["worker"] or record["worker_id"]),
        ("started", format_local_time(started)),
        ("ended", format_local_time(ended)),
        ("ran", format_duration(ended - started) if ended and started else None),
        ("progress", task_report.progress_text(record["progress"])),
        ("error", task_report.error_summary(record["error"])),
    ]
    print_rich(
        record_heading(record["status"], record["name"], record["id"]),
        "",
        name_value_table(*facts),
        *task_report.stack_section(record),
        *task_report.log_section(record, whole=log),
    )
