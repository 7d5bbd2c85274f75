"""The reference pages are complete and up to date: settings, commands, exit codes, schema, states, Python API."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.tour import jobs, tour

import tenuto
from tenuto import Context, Job, Misfire, RetryPolicy, ScheduleDefinition, Tenuto, at, errors, every
from tenuto.cli.command import SHARED_OPTIONS
from tenuto.jobs.registry import TaskOptions
from tenuto.maintenance import recovery, stuck_executions
from tenuto.model.access.actors import ActorType
from tenuto.model.definitions.schedules import MisfirePolicy, OverlapPolicy
from tenuto.model.definitions.steps import _STEP_OPTIONS
from tenuto.model.triggers.calendar_limits import CalendarOptions
from tenuto.model.work.executions import ExecutionState
from tenuto.model.work.occurrences import Decision
from tenuto.model.work.tasks import OutcomeReason, OutcomeStatus, TaskState
from tenuto.model.work.worker_states import WorkerState
from tenuto.operations.definitions.schedules import Schedules
from tenuto.operations.work.executions import Executions
from tenuto.operations.work.queues import QueueOperations
from tenuto.operations.work.tasks import TaskOperations
from tenuto.postgres.database import Database
from tenuto.scheduling import manifest_manager
from tenuto.settings import Settings, WorkerSettings
from tests.docs.generate import FOLDER, PAGES, commands, docstrings, exit_code_rows
from tests.docs.pages import ROOT

PARTITION = re.compile(r"activities_(?:\d{4}_\d{2}|old)")


def page(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """Return the text below a heading of the second level."""
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def missing(names: set[str], text: str) -> set[str]:
    """Return the names that do not occur in the text as code."""
    fences = re.findall(r"```.*?```", text, re.DOTALL)
    inline = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    code = " ".join(fences + inline)
    return {name for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", code)}


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_up_to_date(name: str) -> None:
    assert page(name) == PAGES[name](), "run scripts/docs"


@pytest.mark.parametrize("kind", [Settings, WorkerSettings])
def test_every_setting_has_a_docstring(kind: type[Settings | WorkerSettings]) -> None:
    assert kind.model_fields.keys() - docstrings(kind).keys() == set()


def test_every_command_has_a_section_with_an_example() -> None:
    text = page("cli.md")
    for path in commands().keys() - {""}:
        assert f"\n## tenuto {path}\n" in text
        assert "\n$ tenuto " in section(text, f"tenuto {path}"), f"tenuto {path} has no example"
    assert set(SHARED_OPTIONS) <= {word.lstrip("-") for word in re.findall(r"--\w+", section(text, "Shared options"))}


@pytest.mark.parametrize("name", ["cli.md", "identity.md"])
def test_command_page_shows_no_default_for_options_without_one(name: str) -> None:
    assert not re.findall(r"Default: `(?:Sentinel[^`]*|None|UNSET)`", PAGES[name]())


def test_exit_code_page_lists_every_code() -> None:
    text = page("exit-codes.md")
    assert [row for row in exit_code_rows() if row not in text] == []


def test_state_page_explains_every_state_and_reason() -> None:
    text = page("states.md")
    assert missing(set(TaskState), section(text, "Task states")) == set()
    assert missing(set(OutcomeStatus) | set(OutcomeReason), section(text, "Activity statuses and reasons")) == set()
    assert missing(set(ExecutionState), section(text, "Execution states")) == set()
    assert missing(set(Decision), section(text, "Occurrence decisions")) == set()
    assert missing(set(WorkerState), section(text, "Worker states")) == set()
    assert missing(set(ActorType), section(text, "Initiators")) == set()


def test_state_page_explains_every_recorded_error_type() -> None:
    recorded: set[str] = set()
    for module in (ROOT / "src" / "tenuto").rglob("*.py"):
        recorded |= set(re.findall(r'"(tenuto\.[A-Z]\w+)"', module.read_text(encoding="utf-8")))
    assert recorded
    assert missing(recorded, section(page("states.md"), "Error types")) == set()


async def test_schema_page_describes_every_table_column_index_and_trigger(db: Database) -> None:
    text = page("schema.md")
    tables: dict[str, set[str]] = {}
    for row in await db.fetch_all(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'tenuto'"
    ):
        if not PARTITION.fullmatch(row["table_name"]):
            tables.setdefault(row["table_name"], set()).add(row["column_name"])
    for row in await db.fetch_all("SELECT tablename, indexname FROM pg_indexes WHERE schemaname = 'tenuto'"):
        if not PARTITION.fullmatch(row["tablename"]):
            tables[row["tablename"]].add(row["indexname"])
    for row in await db.fetch_all(
        "SELECT relation.relname, guard.tgname FROM pg_trigger AS guard JOIN pg_class AS relation"
        " ON relation.oid = guard.tgrelid WHERE NOT guard.tgisinternal AND guard.tgparentid = 0"
    ):
        tables["activities" if PARTITION.fullmatch(row["relname"]) else row["relname"]].add(row["tgname"])
    tables.pop("all_activities")  # its columns are those of activities
    assert {
        f"{table}: {name}" for table, names in tables.items() for name in missing(names, section(text, table))
    } == set()


def test_schema_page_describes_every_repair() -> None:
    repairs = {
        value
        for module in (recovery, stuck_executions, manifest_manager)
        for name, value in vars(module).items()
        if name.startswith("REPAIR_")
    }
    assert len(repairs) > 8
    assert missing(repairs, section(page("schema.md"), "repairs")) == set()


def test_api_page_contains_every_public_name() -> None:
    text = page("api.md")
    assert missing(set(tenuto.__all__), text) == set()
    error_classes = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert missing(error_classes, section(text, "Errors")) == set()


def test_api_page_contains_every_operation_and_option() -> None:
    text = page("api.md")
    operations = {name for owner in (Tenuto, TaskOperations, QueueOperations) for name in vars(owner) if name[0] != "_"}
    operations -= {"reading_from"}  # used by the web service
    options = set(inspect.signature(Tenuto.job).parameters) - {"self", "function"}
    assert missing(operations | options, section(text, "Tenuto")) == set()
    assert missing(set(TaskOptions.__dataclass_fields__), section(text, "Job")) == set()
    internal = {"request_stop", "set_progress_json", "progress_json", "log_text", "has_log"}
    internal |= {
        "clock",
        "current_step",
        "current_step_key",
        "run_in_thread",
        "steps",
        "workflow",
    }  # used by the worker
    public = {name for name in vars(Context) if not name.startswith("_")} - internal - {"errors", "warnings"}
    assert missing(public, section(text, "Context")) == set()
    assert missing({field.name for field in dataclasses.fields(RetryPolicy)}, section(text, "RetryPolicy")) == set()
    assert missing({"using", "name", "input_schema", "validate_input"}, section(text, "Job")) == set()
    assert all(hasattr(Job, name) or name == "name" for name in ("using", "input_schema", "validate_input"))


SECTIONS = {
    "Schedules": "schedules",
    "Executions": "executions",
    "Reports": "reports",
    "Manifests": "manifests",
    "Batches": "batches",
    "Dead letters": "dead_letters",
    "One-shots": "one_shots",
    "Bulk operations": "bulk_operations",
    "Events": "events",
    "Approvals": "approvals",
    "Logs": "logs",
    "Secrets": "secrets",
    "API keys": "api_keys",
    "Invitations": "invitations",
    "Audit": "audit",
}
"""Heading of the section, and the attribute of the app whose operations it describes."""

INTERNAL_OPERATIONS = {
    "Executions": {"close"},
    "Schedules": {"report_undeclared"},
    "Manifests": {"check", "from_declaration", "item_serializer", "plan", "report_undeclared"},
    "Dead letters": {"retry_all_of_batch", "retry_task"},
    "One-shots": {"as_one_shot", "find_handler"},
    "Secrets": {"resolve_text"},
    "API keys": {"close", "find_prefix", "has_prefix", "was_recently_valid"},
}
"""Operations that only other packages of Tenuto use."""


@pytest.mark.parametrize("heading", ["Tenuto", *SECTIONS])
def test_api_page_describes_every_operation_once(heading: str) -> None:
    text, app = page("api.md"), Tenuto("postgresql://nowhere")
    owner = app if heading == "Tenuto" else getattr(app, SECTIONS[heading])
    operations = operations_of(owner) - INTERNAL_OPERATIONS.get(heading, set())
    counts = Counter(described_operations(section(text, heading)))
    assert {name: counts[name] for name in operations if counts[name] != 1} == {}
    attributes = {name for name, value in vars(app).items() if not name.startswith("_") and operations_of(value)}
    assert attributes - {"settings", "jobs", "status", "plans", "tasks", "extension_registry"} == set(SECTIONS.values())
    assert missing(operations_of(app.tasks), section(text, "Tenuto")) == set()
    for name in ("status", "plans"):
        (sentence,) = re.findall(rf"`app\.{name}`\s\([^)]*\)?[^)]*\)", section(text, "Tenuto"))
        assert missing(operations_of(getattr(app, name)), sentence) == set()


def operations_of(owner: object) -> set[str]:
    members = inspect.getmembers(type(owner), inspect.isfunction)
    return {name for name, _ in members if not name.startswith("_")} - {"for_caller", "reading_from"}


def described_operations(text: str) -> Iterator[str]:
    """Yield the operations whose signature is in the first cell of a table row or begins a paragraph."""
    for line in text.splitlines():
        if line.startswith("| `"):
            for code in re.findall(r"`([^`]+)`", line.partition(" | ")[0]):
                found = re.match(r"(?:await |with |async with |async for \w+ in )?(?:app\.)?(\w+)\(", code)
                if found:
                    yield found[1]
        elif found := re.match(r"`app\.(\w+)\(", line):
            yield found[1]


def test_api_page_contains_every_schedule_option() -> None:
    text = page("api.md")
    for operations in (Schedules, Executions):
        names = {name for name in vars(operations) if not name.startswith("_")} - {"close"}
        assert missing(names, section(text, operations.__name__)) == set()
    options = set(inspect.signature(Tenuto.schedule).parameters) - {"self"}
    for kind in (Misfire, ScheduleDefinition):
        options |= {field.name for field in dataclasses.fields(kind)}
    options |= set(CalendarOptions.__annotations__) | set(_STEP_OPTIONS) | set(OverlapPolicy) | set(MisfirePolicy)
    for trigger in (at, every):
        options |= set(inspect.signature(trigger).parameters) - {"limits"}
    assert missing(options, section(text, "Schedules")) == set()


def test_readme_states_the_number_of_tour_tasks() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    single = 1 + 2  # a job that recovers; an invoice, and the same invoice corrected
    assert f"{jobs.STEP_COUNT + single + tour.BATCH_SIZE + tour.REPORT_COUNT + tour.INVOICE_COUNT:,} tasks" in text


def test_readme_names_executable_scripts() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for script in ("scripts/demo", "scripts/test"):
        assert script in text
        assert Path(ROOT / script).stat().st_mode & 0o100
