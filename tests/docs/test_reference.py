"""The reference is complete and up to date: settings, commands, exit codes, schema, states, the public names."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from examples.tour import jobs, tour

import tenuto
from tenuto import Context, ScheduleDefinition, Job, Misfire, RetryPolicy, Tenuto, at, errors, every
from tenuto.cli.command import SHARED_OPTIONS
from tenuto.jobs.registry import TaskOptions
from tenuto.lifecycle import execution_control
from tenuto.maintenance import recovery
from tenuto.model.actors import ActorType
from tenuto.model.executions import ExecutionState
from tenuto.model.occurrences import Decision
from tenuto.model.schedules import MisfirePolicy, OverlapPolicy
from tenuto.model.steps import _STEP_OPTIONS
from tenuto.model.tasks import OutcomeReason, OutcomeStatus, TaskState
from tenuto.model.triggers.calendar_limits import CalendarOptions
from tenuto.operations.executions import Executions
from tenuto.operations.queues import QueueOperations
from tenuto.operations.schedules import Schedules
from tenuto.operations.tasks import TaskOperations
from tenuto.postgres.database import Database
from tenuto.service.health_file import worker_condition
from tenuto.settings import Settings, WorkerSettings
from tests.docs.generate import FOLDER, PAGES, commands, docstrings, exit_code_rows
from tests.docs.pages import ROOT

MADE_BY_MONTH = re.compile(r"activities_(?:\d{4}_\d{2}|old)")


def page(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def missing(words: set[str], text: str) -> set[str]:
    """Which of these words do not stand in the text as code."""
    fences = re.findall(r"```.*?```", text, re.DOTALL)
    inline = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    code = " ".join(fences + inline)
    return {word for word in words if not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", code)}


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_made_from_the_code_are_up_to_date(name: str) -> None:
    assert page(name) == PAGES[name](), "run scripts/docs"


@pytest.mark.parametrize("kind", [Settings, WorkerSettings])
def test_every_setting_says_what_it_means(kind: type[Settings | WorkerSettings]) -> None:
    assert kind.model_fields.keys() - docstrings(kind).keys() == set()


def test_every_command_has_words_and_examples() -> None:
    text = page("cli.md")
    for path in commands().keys() - {""}:
        assert f"\n## tenuto {path}\n" in text
        assert "\n$ tenuto " in section(text, f"tenuto {path}"), f"tenuto {path} has no example"
    assert set(SHARED_OPTIONS) <= {word.lstrip("-") for word in re.findall(r"--\w+", section(text, "Shared options"))}


def test_every_exit_code_is_in_the_table() -> None:
    text = page("exit-codes.md")
    assert [row for row in exit_code_rows() if row not in text] == []


def test_every_state_and_reason_is_explained() -> None:
    text = page("states.md")
    assert missing(set(TaskState), section(text, "Of a task")) == set()
    assert missing(set(OutcomeStatus) | set(OutcomeReason), section(text, "Of an activity")) == set()
    assert missing(set(ExecutionState), section(text, "Of an execution")) == set()
    assert missing(set(Decision), section(text, "Of a due instant")) == set()
    assert missing(set(get_args(get_type_hints(worker_condition)["return"])), section(text, "Of a worker")) == set()
    assert missing(set(ActorType), section(text, "Who asked")) == set()


def test_every_error_type_of_our_own_is_explained() -> None:
    recorded: set[str] = set()
    for module in (ROOT / "src" / "tenuto").rglob("*.py"):
        recorded |= set(re.findall(r'"(tenuto\.[A-Z]\w+)"', module.read_text(encoding="utf-8")))
    assert recorded
    assert missing(recorded, section(page("states.md"), "What `error` holds")) == set()


async def test_every_table_column_index_and_trigger_is_described(db: Database) -> None:
    text = page("schema.md")
    tables: dict[str, set[str]] = {}
    for row in await db.fetch_all(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'tenuto'"
    ):
        if not MADE_BY_MONTH.fullmatch(row["table_name"]):
            tables.setdefault(row["table_name"], set()).add(row["column_name"])
    for row in await db.fetch_all("SELECT tablename, indexname FROM pg_indexes WHERE schemaname = 'tenuto'"):
        if not MADE_BY_MONTH.fullmatch(row["tablename"]):
            tables[row["tablename"]].add(row["indexname"])
    for row in await db.fetch_all(
        "SELECT relation.relname, guard.tgname FROM pg_trigger AS guard JOIN pg_class AS relation"
        " ON relation.oid = guard.tgrelid WHERE NOT guard.tgisinternal AND guard.tgparentid = 0"
    ):
        tables["activities" if MADE_BY_MONTH.fullmatch(row["relname"]) else row["relname"]].add(row["tgname"])
    tables.pop("all_activities")  # its columns are those of activities
    assert {
        f"{table}: {name}" for table, names in tables.items() for name in missing(names, section(text, table))
    } == set()


def test_every_repair_net_is_described() -> None:
    nets = {
        value for room in (execution_control, recovery) for name, value in vars(room).items() if name.startswith("NET_")
    }
    assert len(nets) > 3
    assert missing(nets, section(page("schema.md"), "repairs")) == set()


def test_every_public_name_is_in_the_reference_of_the_api() -> None:
    text = page("api.md")
    assert missing(set(tenuto.__all__), text) == set()
    raised = {name for name, kind in vars(errors).items() if inspect.isclass(kind)}
    assert missing(raised, section(text, "Errors")) == set()


def test_every_verb_and_option_is_in_the_reference_of_the_api() -> None:
    text = page("api.md")
    verbs = {name for owner in (Tenuto, TaskOperations, QueueOperations) for name in vars(owner) if name[0] != "_"}
    options = set(inspect.signature(Tenuto.job).parameters) - {"self", "function"}
    assert missing(verbs | options, section(text, "Tenuto")) == set()
    assert missing(set(TaskOptions.__dataclass_fields__), section(text, "Job")) == set()
    told_elsewhere = {"request_stop", "set_progress_json", "progress_json", "log_text"}
    told_elsewhere |= {"current_step", "current_step_key", "run_in_thread", "steps"}  # the worker's side of it
    seen = {name for name in vars(Context) if not name.startswith("_")} - told_elsewhere - {"errors", "warnings"}
    assert missing(seen, section(text, "Context")) == set()
    assert missing({field.name for field in dataclasses.fields(RetryPolicy)}, section(text, "RetryPolicy")) == set()
    assert missing({"using", "name", "input_schema", "validate_input"}, section(text, "Job")) == set()
    assert all(hasattr(Job, name) or name == "name" for name in ("using", "input_schema", "validate_input"))


VERBS_OF = {
    "Schedules": "schedules",
    "Executions": "executions",
    "Manifests": "manifests",
    "Batches": "batches",
    "Dead letters": "dead_letters",
    "One-shots": "one_shots",
    "Logs": "logs",
    "Secrets": "secrets",
    "API keys": "api_keys",
    "Audit": "audit",
}
"""Under which heading the verbs of an attribute of the app stand."""

AMONG_OURSELVES = {
    "Executions": {"close"},
    "Manifests": {"check", "from_declaration", "item_serializer"},
    "One-shots": {"as_one_shot", "find_handler"},
    "Secrets": {"resolve_text"},
    "API keys": {"close", "was_recently_valid"},
}
"""What only other rooms ask for."""


@pytest.mark.parametrize("heading", ["Tenuto", *VERBS_OF])
def test_every_verb_has_one_place_in_the_reference_of_the_api(heading: str) -> None:
    text, app = page("api.md"), Tenuto("postgresql://nowhere")
    owner = app if heading == "Tenuto" else getattr(app, VERBS_OF[heading])
    verbs = verbs_of(owner) - AMONG_OURSELVES.get(heading, set())
    told = Counter(described(section(text, heading)))
    assert {verb: told[verb] for verb in verbs if told[verb] != 1} == {}
    attributes = {name for name, value in vars(app).items() if not name.startswith("_") and verbs_of(value)}
    assert attributes - {"settings", "jobs", "status", "plans"} == set(VERBS_OF.values())
    for name in ("status", "plans"):
        (sentence,) = re.findall(rf"`app\.{name}`\s\([^)]*\)?[^)]*\)", section(text, "Tenuto"))
        assert missing(verbs_of(getattr(app, name)), sentence) == set()


def verbs_of(owner: object) -> set[str]:
    return {name for name, _ in inspect.getmembers(type(owner), inspect.isfunction) if not name.startswith("_")}


def described(text: str) -> Iterator[str]:
    """Whose signature begins a line of a table (there may be several), or a paragraph."""
    for line in text.splitlines():
        if line.startswith("| `"):
            for code in re.findall(r"`([^`]+)`", line.partition(" | ")[0]):
                found = re.match(r"(?:await |with |async with |async for \w+ in )?(?:app\.)?(\w+)\(", code)
                if found:
                    yield found[1]
        elif found := re.match(r"`app\.(\w+)\(", line):
            yield found[1]


def test_every_verb_of_schedules_and_executions_is_in_the_reference_of_the_api() -> None:
    text = page("api.md")
    for verbs in (Schedules, Executions):
        names = {name for name in vars(verbs) if not name.startswith("_")} - {"close"}
        assert missing(names, section(text, verbs.__name__)) == set()
    options = set(inspect.signature(Tenuto.schedule).parameters) - {"self"}
    for kind in (Misfire, ScheduleDefinition):
        options |= {field.name for field in dataclasses.fields(kind)}
    options |= set(CalendarOptions.__annotations__) | set(_STEP_OPTIONS) | set(OverlapPolicy) | set(MisfirePolicy)
    for make in (at, every):
        options |= set(inspect.signature(make).parameters) - {"limits"}
    assert missing(options, section(text, "Schedules")) == set()


def test_the_readme_counts_the_tasks_of_the_demo() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    single = 1 + 2  # a job that recovers; a bill, and the same bill mended
    assert f"{jobs.STEP_COUNT + single + tour.BATCH_SIZE + tour.REPORT_COUNT + tour.INVOICE_COUNT:,} tasks" in text


def test_the_readme_shows_the_commands_there_are() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for script in ("scripts/demo", "scripts/test"):
        assert script in text
        assert Path(ROOT / script).stat().st_mode & 0o100
