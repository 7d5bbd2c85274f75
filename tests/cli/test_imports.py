"""`tenuto import`: prints definition files that `tenuto plan` accepts and that run."""

from __future__ import annotations

from tests.cli.conftest import Shell

CRONTAB = """\
PATH=/usr/local/bin:/usr/bin:/bin
GREETING=it's "me"
# Greet every morning
0 6 * * *  tr a-z A-Z; echo "$GREETING 100\\%"%hello
@reboot /usr/bin/start
"""
CELERY = """
from celery.schedules import crontab
beat_schedule = {
    'double at noon': {'task': 'proj.tasks.double', 'schedule': crontab(minute=0, hour=12), 'kwargs': {'n': 4}},
    'sunset': {'task': 'proj.tasks.double', 'schedule': solar('sunset', 1, 2)},
}
"""
APSCHEDULER = "sched.add_job(double, 'interval', minutes=15, id='quarter', kwargs={'n': 4}, timezone='Europe/London')\n"

AIRFLOW = """
with DAG('doubling', schedule='0 12 * * *'):
    first = PythonOperator(task_id='first', python_callable=double, op_kwargs={'n': 4})
    second = PythonOperator(task_id='second', python_callable=double, op_kwargs={'n': 8})
    first >> second
"""


def test_imported_crontab_is_planned_applied_and_run_as_cron_runs_it(shell: Shell) -> None:
    (shell.folder / "crontab").write_text(CRONTAB, encoding="utf-8")
    imported = shell("import", "crontab", "crontab", "--zone", "Europe/London")
    assert imported.code == 0
    assert "not carried over: line 5: @reboot /usr/bin/start: there is no such trigger" in imported.err
    assert "\n# - line 5: @reboot" in imported.out
    (shell.folder / "schedules.yaml").write_text(imported.out, encoding="utf-8")
    assert shell("plan", "schedules.yaml").code == 2, "there are changes"
    applied = shell("apply", "schedules.yaml", "--yes")
    assert applied.code == 0, applied.err
    assert shell("plan", "schedules.yaml").code == 0
    worker = shell.start_service("worker")
    worker.wait_for_line("worker started")
    ran = shell("schedule", "run", "tr", "--wait", "--timeout", "60")
    assert ran.code == 0, ran.err
    (activity,) = shell("activity", "list", "-o", "json").json
    output = shell("activity", "show", activity["id"], "-o", "json").json["output"]
    assert output["stdout"] == 'HELLO\nit\'s "me" 100%\n'
    assert worker.stop() == 0


def test_imported_python_sources_are_accepted_by_plan(shell: Shell) -> None:
    for command, source, name in (
        ("celery-beat", CELERY, "double at noon"),
        ("apscheduler", APSCHEDULER, "quarter"),
        ("airflow-dag", AIRFLOW, "doubling"),
    ):
        imported = shell("import", command, "-", stdin=source)
        assert imported.code == 0, imported.err
        (shell.folder / f"{command}.yaml").write_text(imported.out, encoding="utf-8")
        planned = shell("plan", f"{command}.yaml", "-o", "json")
        assert planned.code == 2, planned.err
        assert name in planned.out
    found = shell("import", "celery-beat", "-", "-o", "json", stdin=CELERY).json
    assert [schedule["name"] for schedule in found["schedules"]] == ["double at noon"]
    assert [omission["line"] for omission in found["not_carried_over"]] == [5, None, None]


def test_import_reports_unreadable_sources_and_sources_without_schedules(shell: Shell) -> None:
    missing = shell("import", "crontab", "nowhere", "-o", "json")
    assert (missing.code, missing.error["code"]) == (2, "import.source.unreadable")
    (shell.folder / "latin").write_bytes(b"0 1 * * * caf\xe9\n")
    unreadable = shell("import", "crontab", "latin", "-o", "json")
    assert (unreadable.code, unreadable.error["code"]) == (2, "import.source.not_utf8")
    empty = shell("import", "apscheduler", "-", stdin="x = 1\n")
    assert empty.code == 1
    assert "the file calls neither add_job nor scheduled_job" in empty.err
