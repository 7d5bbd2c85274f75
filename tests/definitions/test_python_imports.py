"""Import of schedules from source with Celery beat and APScheduler. The source is never run.

The cron lines of the tables have the next runs that Celery 5.7 and APScheduler 3.11 compute for the expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenuto.definitions.apscheduler_import import import_apscheduler
from tenuto.definitions.celery_import import import_celery_beat
from tenuto.definitions.definition_files import parse_schedules
from tenuto.definitions.document_parser import parse_document
from tenuto.definitions.imported_definitions import ImportedDefinitions
from tests.support.errors import raises_code

CELERY_DOCUMENTATION = """
from celery import Celery
from celery.schedules import crontab, solar
from datetime import timedelta

app = Celery()
MINUTE = 60

@app.on_after_configure.connect
def setup_periodic_tasks(sender: Celery, **kwargs):
    sender.add_periodic_task(10.0, test.s('hello'), name='add every 10')
    sender.add_periodic_task(30.0, test.s(arg='world'), expires=10)

app.conf.beat_schedule = {
    'add-every-30-seconds': {'task': 'tasks.add', 'schedule': 30.0, 'args': (16, 16)},
    'monday': {
        'task': 'proj.tasks.mul',
        'schedule': crontab(hour=7, minute=30, day_of_week=1),
        'kwargs': {'x': 1, 'tags': ['a', 'b']},
        'options': {'queue': 'maths', 'expires': 3},
    },
    'melbourne': {'task': 'tasks.add', 'schedule': solar('sunset', -37.81753, 144.96715)},
    'delta': {'task': 'tasks.add', 'schedule': timedelta(minutes=2 * 5), 'args': ()},
    'constant': {'task': 'tasks.add', 'schedule': 15 * MINUTE},
    'object': {'task': 'tasks.add', 'schedule': schedule(run_every=timedelta(days=1)), 'relative': True},
    'setting': {'task': 'tasks.add', 'schedule': settings.EVERY},
    'computed': make_entry(),
    'data': {'task': 'tasks.add', 'schedule': 3600, 'kwargs': {'x': os.environ['X']}},
    **further,
}
app.conf.timezone = 'Europe/London'
app.conf.beat_schedule['later.on'] = {'task': 'x.y', 'schedule': crontab(minute='*/15')}
"""

APSCHEDULER_DOCUMENTATION = """
from apscheduler.schedulers.blocking import BlockingScheduler

sched = BlockingScheduler(timezone=ZoneInfo("Europe/Berlin"))

@sched.scheduled_job('interval', id='my_job_id', hours=2)
async def job_function():
    ...

@sched.scheduled_job('cron', id='last', day='last sun')
def some_decorated_task():
    ...

sched.add_job(job_function, 'cron', month='6-8,11-12', day='3rd fri', hour='0-3')
sched.add_job(job_function, 'cron', day_of_week='mon-fri', hour=5, minute=30, end_date='2034-05-30')
sched.add_job(job_function, CronTrigger.from_crontab('0 0 1-15 may-aug *', timezone='UTC'))
sched.add_job(job_function, 'cron', hour='*', jitter=120, id='hourly', max_instances=3, kwargs={'a': 1})
sched.add_job(my_job, 'date', run_date=date(2009, 11, 6), args=['text'])
sched.add_job('module:func', 'interval', minutes=10, start_date='2033-10-10 09:30:00', coalesce=False, args=[1])
sched.add_job(f, trigger=IntervalTrigger(seconds=30), misfire_grace_time=15, replace_existing=True)
sched.add_job(func=package.g, trigger=CronTrigger(day_of_week='5-6', hour=3), misfire_grace_time=600)
sched.add_job(g, 'cron', second='*/5')
sched.add_job(lambda: 1, 'interval', seconds=3)
sched.add_job(g, AndTrigger([IntervalTrigger(hours=2), CronTrigger(day_of_week='sat,sun')]))
sched.add_job(g, 'interval', minutes=PERIOD)
sched.add_job(g, 'interval', weeks=1, start_date=datetime(2033, 1, 2), next_run_time=None)
"""


def check(found: ImportedDefinitions) -> ImportedDefinitions:
    document = parse_document("import.yaml", found.to_yaml().encode())
    assert len(parse_schedules([document])) == len(found.schedules), "the printed file is a definition file"
    return found


def by_name(found: ImportedDefinitions) -> dict[str, dict[str, Any]]:
    return {schedule["name"]: {key: schedule[key] for key in schedule if key != "name"} for schedule in found.schedules}


def test_celery_import_converts_the_forms_of_the_documentation() -> None:
    found = check(import_celery_beat(CELERY_DOCUMENTATION, source="celery.py"))
    add, zone = [{"job": "add"}], "Europe/London"
    assert by_name(found) == {
        "add every 10": {"every": "10s", "zone": zone, "steps": [{"job": "test"}]},
        "test": {"every": "30s", "zone": zone, "steps": [{"job": "test", "input": {"arg": "world"}}]},
        "add-every-30-seconds": {"every": "30s", "zone": zone, "steps": add},
        "monday": {
            "cron": "30 7 * * 1",
            "zone": zone,
            "steps": [{"job": "mul", "input": {"x": 1, "tags": ["a", "b"]}, "queue": "maths"}],
        },
        "delta": {"every": "10m", "zone": zone, "steps": add},
        "constant": {"every": "15m", "zone": zone, "steps": add},
        "object": {"every": "1d", "zone": zone, "steps": add},
        "data": {"every": "1h", "zone": zone, "steps": add},
        "later.on": {"cron": "*/15 * * * *", "zone": zone, "steps": [{"job": "y"}]},
    }
    assert [str(omission) for omission in found.omissions] == [
        "line 11: 'add every 10': the positional arguments ['hello']; write them by name, as input",
        "line 12: 'test': the option expires=10",
        "line 15: 'add-every-30-seconds': the positional arguments [16, 16]; write them by name, as input",
        "line 16: 'monday': the option expires=3",
        "line 22: 'melbourne' is left out: there is no trigger for the position of the sun",
        "line 26: 'setting' is left out: its schedule settings.EVERY is computed",
        "line 27: 'computed' is left out: its value is computed",
        "line 28: 'data': the keyword arguments {'x': os.environ['X']} are computed",
        "line 29: '**further' is left out: its value is computed",
    ]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ("", "* * * * *"),
        ("minute=0, hour='*/3,8-17'", "0 */3,8-17 * * *"),
        ("0, 5", "0 5 * * *"),
        ("minute=0, hour=0, day_of_month='2-30/2'", "0 0 2-30/2 * *"),
        ("minute=0, hour=0, month_of_year='*/3', day_of_month=1", "0 0 1 */3 *"),
        ("minute='*/10', hour='3,17,22', day_of_week='thu,fri'", "*/10 3,17,22 * * thu,fri"),
        ("minute=0, hour=7, day_of_week='Sunday'", "0 7 * * sun"),
        ("minute=0, hour=5, day_of_month='*/2', day_of_week='fri'", "0 5 */2 * fri"),
        ("minute=0, hour=[1, 2]", "0 1,2 * * *"),
        ("minute=0, day_of_month='1', day_of_week='mon'", "a day matches both day fields"),
        ("0, 0, '*', '1', '*'", "order differs between versions"),
        ("minute=M", "the field minute is computed"),
        ("minute=0, nowfun=f", "crontab has the option nowfun"),
        ("minute='*/90'", "'*/90'"),
    ],
)
def test_celery_crontab_becomes_a_cron_line_or_is_reported(fields: str, line: str) -> None:
    source = f"CELERY_BEAT_SCHEDULE = {{'a': {{'task': 't', 'schedule': crontab({fields})}}}}"
    found = check(import_celery_beat(source, source="settings.py"))
    if found.schedules:
        assert (found.schedules[0]["cron"], found.schedules[0]["zone"]) == (line, "UTC")
    else:
        assert line in str(found.omissions[0])


def test_celery_import_reads_the_options_of_conf_update_and_the_zone_option_wins() -> None:
    source = "app.conf.update(timezone='UTC', beat_schedule={'a': dict(task='t', schedule=60)}, enable_utc=True)"
    assert by_name(import_celery_beat(source, source="x"))["a"]["zone"] == "UTC"
    found = check(import_celery_beat(source, source="x", zone="Europe/London"))
    assert by_name(found) == {"a": {"every": "1m", "zone": "Europe/London", "steps": [{"job": "t"}]}}
    (omission,) = import_celery_beat("x = 1", source="x").omissions
    assert "declares no beat_schedule" in str(omission)


def test_apscheduler_import_converts_the_forms_of_the_documentation() -> None:
    found = check(import_apscheduler(APSCHEDULER_DOCUMENTATION, source="jobs.py"))
    zone, steps = "Europe/Berlin", [{"job": "job_function"}]
    assert by_name(found) == {
        "my_job_id": {"every": "2h", "zone": zone, "steps": steps},
        "job_function": {"cron": "30 5 * * mon,tue,wed,thu,fri", "zone": zone, "end": "2034-05-30", "steps": steps},
        "job_function 2": {"cron": "0 0 1-15 may-aug *", "zone": "UTC", "steps": steps},
        "hourly": {
            "cron": "0 * * * *",
            "zone": zone,
            "jitter": "2m",
            "overlap": "allow",
            "steps": [{"job": "job_function", "input": {"a": 1}}],
        },
        "func": {"every": "10m", "zone": zone, "start": "2033-10-10", "misfire": "all", "steps": [{"job": "func"}]},
        "f": {
            "every": "30s",
            "zone": zone,
            "misfire": {"policy": "skip", "grace_seconds": 60},
            "steps": [{"job": "f"}],
        },
        "g": {
            "cron": "0 3 * * sat,sun",
            "zone": zone,
            "misfire": {"policy": "skip", "grace_seconds": 600},
            "steps": [{"job": "g"}],
        },
        "g 2": {"every": "7d", "zone": zone, "start": "2033-01-02", "steps": [{"job": "g"}]},
    }
    assert [str(omission) for omission in found.omissions] == [
        "line 10: 'last' is left out: a cron line cannot count weekdays or days from the end of the month",
        "line 14: 'job_function' is left out: a cron line cannot count weekdays or days from the end of the month",
        "line 18: 'my_job' is left out: it runs once; see `tenuto once`",
        "line 19: 'func': the time of day of start_date; the whole day counts",
        "line 19: 'func': the positional arguments [1]; write them by name, as input",
        "line 20: 'f': misfire_grace_time=15; the shortest is 60 s",
        "line 22: 'g' is left out: second=*/5: the shortest period of a cron line is a minute",
        "line 23: 'job' is left out: its function is not written in the file",
        "line 24: 'g' is left out: the trigger AndTrigger(…) has no equivalent",
        "line 25: 'g' is left out: its trigger is computed",
        "line 26: 'g': next_run_time; disable a schedule with `tenuto schedule disable`",
    ]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ("hour=5", "0 5 * * *"),
        ("day=3", "0 0 3 * *"),
        ("month=6", "0 0 1 6 *"),
        ("minute='*/20'", "*/20 * * * *"),
        ("day_of_week=0", "0 0 * * mon"),
        ("day_of_week='0,6', hour=1", "0 1 * * mon,sun"),
        ("day_of_week='*/2', hour=1", "0 1 * * mon,wed,fri,sun"),
        ("day_of_week='sun'", "0 0 * * sun"),
        ("day='*/2', day_of_week='fri', hour=4", "0 4 */2 * fri"),
        ("hour='8-18/5', minute=7, second=0", "7 8-18/5 * * *"),
        ("day_of_week='tue-sat/2'", "ignores a step after names"),
        ("day=1, day_of_week='mon'", "a day matches both day fields"),
        ("week=3", "a cron line has no such field"),
        ("year=2031", "a cron line has no such field"),
        ("day_of_week='funday'", "is not a weekday"),
        ("fortnight=1", "no field fortnight"),
        ("", "every second"),
    ],
)
def test_apscheduler_cron_fields_become_a_cron_line_or_are_reported(fields: str, line: str) -> None:
    found = check(import_apscheduler(f"s.add_job(f, 'cron', {fields})", source="jobs.py"))
    if found.schedules:
        assert found.schedules[0]["cron"] == line
        assert "time zone of its machine" in str(found.omissions[-1])
    else:
        assert line in str(found.omissions[0])


@pytest.mark.parametrize("convert", [import_celery_beat, import_apscheduler])
def test_python_import_runs_no_code_and_refuses_what_is_not_python(
    convert: Callable[..., ImportedDefinitions], tmp_path: Any
) -> None:
    witness = tmp_path / "ran"
    convert(f"from pathlib import Path\nPath({str(witness)!r}).touch()\nX = 1 / 0\nY = 'a' * 10**12", source="x")
    assert not witness.exists()
    with raises_code("import.source.invalid"):
        convert("0 2 * * * backup", source="crontab")
    with raises_code("import.source.too_large"):
        convert("#" * 2_000_001, source="x")
