"""Import of schedules from the source of Airflow DAGs. The source is never run."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto import Context, Tenuto
from tenuto.definitions.definition_files import parse_schedules
from tenuto.definitions.document_parser import parse_document
from tenuto.definitions.importers.airflow import import_airflow_dags
from tenuto.definitions.importers.imported_definitions import ImportedDefinitions
from tenuto.operations.definitions.plans import read_declarations
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory

OVERLAP_OF_AIRFLOW = "Airflow lets 16 runs of a DAG overlap, a schedule none; see `overlap`"
HEADER = """\
from datetime import datetime, timedelta
from airflow.sdk import DAG, chain, dag, task
"""
OPERATORS = (
    HEADER
    + """
with DAG(
    "tutorial",
    default_args={"depends_on_past": False, "retries": 1, "retry_delay": timedelta(minutes=5), "email": ["a@b"]},
    description="A simple DAG",
    schedule=timedelta(days=1),
    start_date=datetime(2021, 1, 1),
    catchup=False,
    tags=["example"],
) as dag:
    t1 = BashOperator(task_id="print_date", bash_command="date", cwd="/srv", env={"DAY": "1"})
    t2 = BashOperator(task_id="sleep", depends_on_past=False, bash_command="sleep 5", retries=3, queue="mail")
    t3 = BashOperator(task_id="templated", bash_command="echo {{ ds }}")
    dag.doc_md = "text"
    t1 >> [t2, t3]
"""
)
WAREHOUSE = (
    HEADER
    + """
nightly = DAG("warehouse", schedule="0 6 * * 1-5", start_date=pendulum.datetime(2024, 3, 1, tz="Europe/Berlin"),
              max_active_runs=1, catchup=True, dagrun_timeout=timedelta(hours=2))
start = EmptyOperator(task_id="start", dag=nightly)
extract = PythonOperator(task_id="extract", python_callable=jobs.extract, op_kwargs={"day": 1}, dag=nightly,
                         execution_timeout=timedelta(minutes=30))
sales = PythonOperator(task_id="load_sales", python_callable=load, op_args=["sales"], dag=nightly)
stock = PythonOperator(task_id="load_stock", python_callable=load, dag=nightly, trigger_rule="all_done", pool="db")
side = TriggerDagRunOperator(task_id="side", trigger_dag_id="tutorial", dag=nightly)
wait = FileSensor(task_id="wait", filepath="x", dag=nightly)
odd = PythonOperator(task_id="odd", python_callable=lambda: 1, dag=nightly)
check = PythonOperator(task_id="check", python_callable=check_rows, dag=nightly)
chain(start, extract, [sales, stock], wait, check)
start >> side
check.set_downstream(odd)
"""
)
TASKFLOW = (
    HEADER
    + """
@dag(schedule="@daily", start_date=datetime(2021, 1, 1))
def taskflow():
    @task()
    def extract(): ...
    @task(multiple_outputs=True, retries=2)
    def transform(orders: dict): ...
    @task
    def load(total: float, table="x"): ...
    @task.branch
    def choose(): ...
    orders = extract()
    summary = transform(orders)
    load(summary["total"], table="orders")
    load.override(task_id="other", retries=1)(total=1.0)
    load(2.0)
    choose()
    load.expand(total=[1, 2])
    for number in range(3):
        load(number)

taskflow()
"""
)


def check(found: ImportedDefinitions) -> ImportedDefinitions:
    document = parse_document("import.yaml", found.to_yaml().encode())
    assert len(parse_schedules([document])) == len(found.schedules), "the printed file is a definition file"
    return found


def steps_of(source: str) -> list[Any]:
    """Return the names of the steps, parallel ones as a list."""
    (schedule,) = check(import_airflow_dags(source, source="dag.py")).schedules

    def name(step: dict[str, Any]) -> str:
        return str(step.get("name") or step["job"])

    return [[name(each) for each in step] if isinstance(step, list) else name(step) for step in schedule["steps"]]


def omissions(source: str) -> list[str]:
    return [str(omission) for omission in import_airflow_dags(source, source="dag.py").omissions]


def in_dag(body: str, options: str = "schedule=None") -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    operators = "".join(f"    {name} = BashOperator(task_id='{name}', bash_command='true')\n" for name in "abcdef")
    return f"{HEADER}\nwith DAG('x', {options}):\n{operators}{lines}\n"


def test_airflow_import_converts_operators_and_their_retries() -> None:
    found = check(import_airflow_dags(OPERATORS, source="dag.py"))
    arguments = {"program": "/bin/bash", "args": ["-c", "date"], "env": {"DAY": "1"}, "folder": "/srv"}
    retry = {"base_seconds": 300.0, "factor": 1}
    assert found.schedules == [
        {
            "name": "tutorial",
            "description": "A simple DAG",
            "start": "2021-01-01",
            "every": "1d",
            "zone": "UTC",
            "steps": [
                {
                    "name": "print_date",
                    "kind": "executable",
                    "arguments": arguments,
                    "retry": {"max_attempts": 2, **retry},
                },
                {
                    "name": "sleep",
                    "kind": "executable",
                    "arguments": {"program": "/bin/bash", "args": ["-c", "sleep 5"]},
                    "retry": {"max_attempts": 4, **retry},
                    "queue": "mail",
                },
            ],
        }
    ]
    assert [str(omission) for omission in found.omissions] == [
        "line 13: 'print_date': email=['a@b']",
        "line 14: 'sleep': email=['a@b']",
        "line 15: 'templated' is left out: its command contains a template; write a job",
        OVERLAP_OF_AIRFLOW,
    ]


def test_airflow_import_turns_the_order_of_tasks_into_step_groups_and_edges() -> None:
    found = check(import_airflow_dags(WAREHOUSE, source="dag.py"))
    once = {"max_attempts": 1}
    assert found.schedules == [
        {
            "name": "warehouse",
            "start": "2024-03-01",
            "cron": "0 6 * * 1-5",
            "zone": "Europe/Berlin",
            "misfire": "all",
            "overlap": "queue_one",
            "steps": [
                [
                    {"job": "extract", "input": {"day": 1}, **once, "timeout": "30m", "continue_on_failure": True},
                    {"name": "side", "schedule": "tutorial", **once},
                ],
                [
                    {
                        "name": "load_sales",
                        "job": "load",
                        **once,
                        "needs": ["extract"],
                        "when": "steps.extract.succeeded",
                    },
                    {"name": "load_stock", "job": "load", **once, "needs": ["extract"]},
                ],
                {
                    "name": "check",
                    "job": "check_rows",
                    **once,
                    "needs": ["load_sales", "load_stock"],
                    "when": "steps.load_sales.succeeded",
                },
            ],
        }
    ]
    assert [str(omission) for omission in found.omissions] == [
        "line 4: 'warehouse': catchup=True covers the time since the schedule was created; "
        "see `tenuto schedule backfill` for the past",
        "line 4: 'warehouse': dagrun_timeout=datetime.timedelta(seconds=7200)",
        "line 9: 'load_sales': the positional arguments ['sales']; write them by name, as input",
        "line 10: 'load_stock': pool='db'",
        "line 11: 'side': the step waits until the other schedule has ended; Airflow does not wait",
        "line 12: 'wait' is left out: FileSensor has no equivalent; write a job",
        "line 13: 'odd' is left out: its function lambda: 1 has no name",
        OVERLAP_OF_AIRFLOW,
    ]


def test_airflow_import_converts_decorated_tasks_and_the_results_that_they_pass_on() -> None:
    found = check(import_airflow_dags(TASKFLOW, source="dag.py"))
    (schedule,) = found.schedules
    assert {key: schedule[key] for key in ("name", "cron", "zone")} == {
        "name": "taskflow",
        "cron": "@daily",
        "zone": "UTC",
    }
    retry = {"max_attempts": 2, "base_seconds": 300.0, "factor": 1}
    assert schedule["steps"] == [
        [
            {"job": "extract", "max_attempts": 1},
            {"name": "other", "job": "load", "input": {"total": 1.0}, "retry": retry},
            {"name": "load__1", "job": "load", "input": {"total": 2.0}, "max_attempts": 1},
            {"job": "choose", "max_attempts": 1},
        ],
        {
            "job": "transform",
            "input": {"orders": "${steps.extract.output}"},
            "retry": {**retry, "max_attempts": 3},
            "needs": ["extract"],
        },
        {
            "job": "load",
            "input": {"total": "${steps.transform.output.total}", "table": "orders"},
            "max_attempts": 1,
            "needs": ["transform"],
        },
    ]
    reports = [str(omission) for omission in found.omissions]
    for report in (
        "line 20: 'load__2' is left out: `load.expand(…)`, which makes many tasks of one, has no equivalent; "
        "write a job",
        "line 21: 'taskflow': tasks such as load(…) are left out: the file does not show which exist",
    ):
        assert report in reports


@pytest.mark.parametrize(
    ("order", "groups"),
    [
        ("a >> b >> [c, d] >> e\nf", [["a", "f"], "b", ["c", "d"], "e"]),
        ("e << [c, d] << b << a", [["a", "f"], "b", ["c", "d"], "e"]),
        ("chain(a, [b, c], [d, e], f)", ["a", ["b", "c"], ["d", "e"], "f"]),
        ("a.set_downstream([b, c])\nd.set_upstream(b)", [["a", "e", "f"], ["b", "c"], "d"]),
        ("a >> c\nb >> c\nc >> d", [["a", "b", "e", "f"], "c", "d"]),
        (
            "with TaskGroup('g') as g:\n    x = EmptyOperator(task_id='x')\n    y = TriggerDagRunOperator(task_id='y', "
            "trigger_dag_id='z', wait_for_completion=True)\n    x >> y\nc >> g >> d",
            [["a", "b", "c", "e", "f"], "g.y", "d"],
        ),
        ("a >> Label('ok') >> b\nchain(b, Label('x'), c)", [["a", "d", "e", "f"], "b", "c"]),
        ("x = [a, b, c]\nchain(*x)", [["a", "d", "e", "f"], "b", "c"]),
        ("x = [a, b]\nx >> c", [["a", "b", "d", "e", "f"], "c"]),
    ],
)
def test_airflow_order_becomes_the_order_of_step_groups(order: str, groups: list[Any]) -> None:
    assert steps_of(in_dag(order)) == groups


@pytest.mark.parametrize(
    ("options", "trigger"),
    [
        ("schedule='*/5 * * * *'", {"cron": "*/5 * * * *", "zone": "UTC"}),
        ("schedule=None", {}),
        ("schedule=timedelta(hours=6)", {"every": "6h", "zone": "UTC"}),
        (
            "schedule=CronTriggerTimetable('0 1 * * *', timezone='Asia/Tokyo')",
            {"cron": "0 1 * * *", "zone": "Asia/Tokyo"},
        ),
        ("timetable=DeltaTriggerTimetable(timedelta(days=2))", {"every": "2d", "zone": "UTC"}),
        (
            "schedule='@weekly', default_args={'start_date': datetime(2024, 1, 2, tzinfo=ZoneInfo('Europe/Paris'))}",
            {"start": "2024-01-02", "cron": "@weekly", "zone": "Europe/Paris"},
        ),
    ],
)
def test_airflow_schedule_becomes_a_trigger(options: str, trigger: dict[str, str]) -> None:
    (schedule,) = check(import_airflow_dags(in_dag("a >> b", options), source="dag.py")).schedules
    assert {key: value for key, value in schedule.items() if key not in ("name", "steps")} == trigger


@pytest.mark.parametrize(
    ("options", "report"),
    [
        ("schedule='@once'", "'x' has no trigger: it runs once; see `tenuto once`"),
        ("schedule='@continuous'", "'x' has no trigger: there is no trigger for the end of the previous run"),
        ("schedule=[Asset('a')]", "'x' has no trigger: [Asset(…)] is neither a cron line nor an interval in the file"),
        ("schedule=EVERY", "'x' has no trigger: EVERY is neither a cron line nor an interval in the file"),
        ("tags=[]", "'x': without a schedule, Airflow 2 runs it daily, Airflow 3 and this file never"),
        ("schedule='61 * * * *'", "'x' is left out: "),
        ("schedule=None, default_args=make()", "'x': default_args=make(…) is computed"),
        ("schedule='@daily', max_active_runs=3", "'x': max_active_runs=3; see `overlap`"),
        ("schedule='@daily', start_date=days_ago(2)", "'x': start_date=days_ago(…) is computed"),
        ("schedule=None, on_failure_callback=page", "'x': on_failure_callback=page"),
    ],
)
def test_airflow_import_reports_options_that_it_cannot_carry_over(options: str, report: str) -> None:
    found = omissions(in_dag("a >> b", options))
    assert any(text.startswith(f"line 4: {report}") for text in found), found


@pytest.mark.parametrize(
    ("order", "report"),
    [
        ("for t in [b, c]:\n    a >> t", "the order of tasks in this statement is left out"),
        ("if x:\n    chain(a, b)", "the order of tasks in this statement is left out"),
        ("a.set_upstream(b) if x else None", "the order of tasks in this statement is left out"),
        ("a >> unknown", "the order `a >> unknown` is left out in part: not all tasks are known"),
        ("chain(a, *unknown, b)", "the order `chain(a, *unknown, b)` is left out in part: not all tasks are known"),
        (
            "a.set_downstream(unknown)",
            "the order `a.set_downstream(unknown)` is left out in part: not all tasks are known",
        ),
    ],
)
def test_airflow_import_reports_an_order_that_it_cannot_know(order: str, report: str) -> None:
    assert f"line 11: 'x': {report}" in omissions(in_dag(order))


@pytest.mark.parametrize("rule", ["choose('x')", "['all_done']", "1"])
def test_airflow_import_reports_a_computed_trigger_rule(rule: str) -> None:
    found = omissions(in_dag(f"BashOperator(task_id='g', bash_command='true', trigger_rule={rule})"))
    assert any("'g': trigger_rule=" in text for text in found), found


def test_airflow_import_leaves_out_a_dag_whose_tasks_form_a_circle() -> None:
    found = import_airflow_dags(in_dag("a >> b >> a"), source="dag.py")
    assert found.schedules == []
    assert [str(omission) for omission in found.omissions] == [
        "line 4: 'x' is left out: no step could be carried over",
        "line 5: 'x': 'a' stands before itself",
    ]


def test_airflow_import_refuses_what_is_not_python_and_reports_a_file_without_dags() -> None:
    with raises_code("import.source.invalid"):
        import_airflow_dags("with DAG(:", source="dag.py")
    assert omissions("print('hello')") == ["the file declares no DAG"]


def test_airflow_import_accepts_long_and_deeply_nested_expressions() -> None:
    long = " >> ".join(["a", "b"] + ["c"] * 900)
    nested = "[" * 80 + "a" + "]" * 80
    for text in (long, f"{nested} >> b"):
        import_airflow_dags(in_dag(text), source="dag.py").to_yaml()


SHOP = (
    HEADER
    + """
@dag(schedule=None)
def shop():
    @task
    def extract(): ...
    @task.branch
    def choose(count, limit=2): ...
    @task
    def big(orders): ...
    @task
    def small(orders): ...
    @task
    def after_small(): ...
    @task(trigger_rule="none_failed_min_one_success")
    def join(parts): ...
    @task
    def broken(): ...
    @task(trigger_rule="one_failed")
    def alarm(): ...
    @task
    def after_broken(): ...
    @task(trigger_rule=TriggerRule.ALL_DONE)
    def tidy(): ...
    @task.short_circuit
    def is_sunday(): ...
    @task
    def rest(): ...
    orders = extract()
    choice = choose(orders["count"])
    gate = EmptyOperator(task_id="gate")
    first = big(orders)
    second = small(orders)
    choice >> [first, gate]
    gate >> second >> after_small()
    [first, second] >> join([orders["count"], orders])
    failing = broken()
    failing >> [alarm(), after_broken(), tidy()]
    is_sunday() >> rest()

shop()
"""
)


async def test_imported_airflow_dag_runs_with_its_results_branches_and_trigger_rules(
    app: Tenuto, worker: WorkerFactory
) -> None:
    ran: dict[str, Any] = {}

    @app.job
    async def extract() -> dict[str, Any]:
        return {"count": 3, "rows": [1, 2, 3]}

    @app.job
    async def choose(count: int, limit: int = 2) -> str:
        return "big" if count > limit else "gate"

    @app.job
    async def big(orders: dict[str, Any]) -> None:
        ran["big"] = orders["rows"]

    @app.job
    async def small(orders: dict[str, Any]) -> None:
        ran["small"] = orders

    @app.job
    async def join(parts: list[Any]) -> None:
        ran["join"] = parts[0]

    @app.job
    async def broken() -> None:
        raise ValueError("no disk")

    @app.job
    async def is_sunday() -> bool:
        return False

    for name in ("after_small", "alarm", "after_broken", "tidy", "rest"):

        @app.job(name=name)
        async def mark(ctx: Context) -> None:
            ran[ctx.task.name] = True

    found = check(import_airflow_dags(SHOP, source="dag.py"))
    declarations = read_declarations([parse_document("shop.yaml", found.to_yaml().encode())])
    await app.plans.apply(await app.plans.plan(declarations))
    async with worker():
        id = (await app.schedules.run("shop")).execution_id
        assert id is not None
        ended = await app.executions.wait(id, 30)
    states = {step.name: str(step.state) for step in ended.steps}
    assert {name: state for name, state in states.items() if state != "completed"} == {
        "small": "skipped",
        "after_small": "skipped",
        "broken": "failed",
        "after_broken": "skipped",
        "rest": "skipped",
    }
    assert ran == {"big": [1, 2, 3], "join": 3, "alarm": True, "tidy": True}
    assert [str(omission) for omission in found.omissions] == [OVERLAP_OF_AIRFLOW]


@pytest.mark.parametrize(
    ("rule", "condition"),
    [
        ("all_done", None),
        ("one_failed", "(steps.a.failed or steps.b.failed)"),
        ("all_failed", "steps.a.failed and steps.b.failed"),
        ("one_success", "(steps.a.succeeded or steps.b.succeeded)"),
        ("none_failed", None),
    ],
)
def test_airflow_trigger_rule_becomes_a_condition(rule: str, condition: str | None) -> None:
    source = in_dag(f"g = BashOperator(task_id='g', bash_command='true', trigger_rule='{rule}')\n[a, b] >> g\nc >> d")
    (schedule,) = check(import_airflow_dags(source, source="dag.py")).schedules
    (last,) = [step for group in schedule["steps"][1:] for step in group if step["name"] == "g"]
    assert (last.get("when"), last["needs"]) == (condition, ["a", "b"])
    first = {step["name"]: step.get("continue_on_failure") for step in schedule["steps"][0]}
    assert (first["a"], first["c"]) == (None if rule == "none_failed" else True, None)


BRANCH = "pick = BranchPythonOperator(task_id='pick', python_callable=pick)\n"
EMPTY = "EmptyOperator(task_id='join', trigger_rule='{}')"
CIRCUIT = "gate = ShortCircuitOperator(task_id='gate', python_callable=gate{})\n"


def conditions_of(body: str) -> dict[str, str]:
    """Return the conditions of steps by name."""
    (schedule,) = check(import_airflow_dags(in_dag(body), source="dag.py")).schedules
    steps = [step for group in schedule["steps"] for step in (group if isinstance(group, list) else [group])]
    return {step.get("name") or step["job"]: step["when"] for step in steps if "when" in step}


A_CHOSEN, B_CHOSEN = 'steps.pick.output == "a"', 'steps.pick.output == "b"'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            f"{BRANCH}join = {EMPTY.format('none_failed_min_one_success')}\npick >> [a, b] >> join >> c",
            {"a": A_CHOSEN, "b": B_CHOSEN, "c": "(steps.a.succeeded or steps.b.succeeded)"},
        ),
        (
            f"{BRANCH}join = {EMPTY.format('all_success')}\npick >> [a, b] >> join >> c",
            {"a": A_CHOSEN, "b": B_CHOSEN, "c": "steps.a.succeeded and steps.b.succeeded"},
        ),
        (f"join = {EMPTY.format('all_done')}\n[a, b] >> join >> c", {}),
        (
            f"join = {EMPTY.format('one_failed')}\n[a, b] >> join >> c",
            {"c": "(steps.a.failed or steps.b.failed)"},
        ),
        (
            f"{BRANCH}pick >> [a, b]\na >> b",
            {"a": A_CHOSEN, "b": f"({B_CHOSEN} or {A_CHOSEN}) and steps.a.succeeded"},
        ),
        (
            f"{BRANCH}no = EmptyOperator(task_id='no')\npick >> [a, no]\nno >> b",
            {"a": A_CHOSEN, "b": 'steps.pick.output == "no"'},
        ),
        (
            f"{CIRCUIT.format('')}g = BashOperator(task_id='g', bash_command='true', "
            "trigger_rule='all_done')\ngate >> a >> g >> b",
            {"a": "steps.gate.output", "g": "steps.gate.output", "b": "steps.g.succeeded"},
        ),
        (
            f"{CIRCUIT.format(', ignore_downstream_trigger_rules=False')}g = BashOperator(task_id='g', "
            "bash_command='true', trigger_rule='all_done')\ngate >> a >> g",
            {"a": "steps.gate.output"},
        ),
        (
            f"{BRANCH}with TaskGroup('g'):\n    with TaskGroup(group_id='h'):\n"
            "        x = BashOperator(task_id='x', bash_command='true')\n"
            "with TaskGroup('k', prefix_group_id=False):\n"
            "    y = BashOperator(task_id='y', bash_command='true')\npick >> [x, y]",
            {"g.h.x": 'steps.pick.output == "g.h.x"', "y": 'steps.pick.output == "y"'},
        ),
    ],
)
def test_airflow_branches_and_short_circuits_become_conditions(body: str, expected: dict[str, str]) -> None:
    assert conditions_of(body) == expected


@pytest.mark.parametrize(
    ("body", "report"),
    [
        (f"join = {EMPTY.format('all_skipped')}\na >> join >> b", "'join': trigger_rule='all_skipped'; see `when`"),
        (
            "with TaskGroup(NAME):\n    x = EmptyOperator(task_id='x')",
            "'x': the name NAME of the task group is computed, and not in the names of its steps",
        ),
        (
            "@task_group\ndef part():\n    x = EmptyOperator(task_id='x')\npart()",
            "the tasks of 'part' are left out: @task_group has no equivalent; see TaskGroup",
        ),
        (
            "x = EmptyOperator(task_id='x')\ny = EmptyOperator(task_id='y')\nx >> y >> x",
            "'x': tasks without a step stand before themselves",
        ),
    ],
)
def test_airflow_import_reports_conditions_that_it_cannot_express(body: str, report: str) -> None:
    assert any(text.endswith(f": {report}") for text in omissions(in_dag(body))), omissions(in_dag(body))


async def test_step_after_the_join_of_a_branch_runs_as_in_airflow(app: Tenuto, worker: WorkerFactory) -> None:
    join = EMPTY.format("none_failed_min_one_success")
    text = in_dag(f"{BRANCH}join = {join}\npick >> [a, b] >> join >> c\n")

    @app.job
    async def pick() -> str:
        return "b"

    found = check(import_airflow_dags(text, source="dag.py"))
    declarations = read_declarations([parse_document("x.yaml", found.to_yaml().encode())])
    await app.plans.apply(await app.plans.plan(declarations))
    async with worker():
        id = (await app.schedules.run("x")).execution_id
        assert id is not None
        ended = await app.executions.wait(id, 30)
    states = {step.name: str(step.state) for step in ended.steps}
    assert (states["a"], states["b"], states["c"]) == ("skipped", "completed", "completed")


def test_airflow_output_of_a_command_and_of_a_task_that_is_left_out() -> None:
    source = in_dag(
        "g = PythonOperator(task_id='load rows', python_callable=load, op_kwargs={'day': a.output, 'n': 1})\n"
        "s = FileSensor(task_id='s')\n"
        "h = PythonOperator(task_id='h', python_callable=load, op_kwargs={'day': s.output, 'rows': g.output['x y']})"
    )
    found = check(import_airflow_dags(source, source="dag.py"))
    steps = {step["name"]: step for group in found.schedules[0]["steps"] for step in (
        group if isinstance(group, list) else [group])}  # fmt: skip
    assert steps["load rows"]["input"] == {"day": "${steps.a.output.stdout}", "n": 1}
    assert steps["h"]["input"] == {"rows": '${steps["load rows"].output["x y"]}'}
    reports = [str(omission) for omission in found.omissions]
    assert (
        "line 11: 'load rows': the result of 'a' is all that the command writes; in Airflow it is the last line"
        in reports
    )
    assert "line 13: 'h': its argument, the result of 's', which is left out" in reports
