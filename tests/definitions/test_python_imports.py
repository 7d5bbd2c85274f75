"""Import of schedules from source with Celery beat and APScheduler. The source is never run.

The cron lines of the tables have the next runs that Celery 5.7 and APScheduler 3.11 compute for the expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenuto.definitions.definition_files import parse_schedules
from tenuto.definitions.document_parser import parse_document
from tenuto.definitions.importers.apscheduler import import_apscheduler
from tenuto.definitions.importers.celery_beat import import_celery_beat
from tenuto.definitions.importers.imported_definitions import ImportedDefinitions
from tests.support.errors import raises_code

OVERLAP_OF_CELERY = "Celery starts a task while its last run is active, a schedule does not; see `overlap`"
SKIP: dict[str, Any] = {"policy": "skip", "grace_seconds": 60}

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
        OVERLAP_OF_CELERY,
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
        ("minute=0, hour={1, 2}", "0 1,2 * * *"),
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
        "my_job_id": {"every": "2h", "zone": zone, "misfire": SKIP, "steps": steps},
        "job_function": {
            "cron": "30 5 * * mon,tue,wed,thu,fri",
            "zone": zone,
            "end": "2034-05-30",
            "misfire": SKIP,
            "steps": steps,
        },
        "job_function 2": {"cron": "0 0 1-15 may-aug *", "zone": "UTC", "misfire": SKIP, "steps": steps},
        "hourly": {
            "cron": "0 * * * *",
            "zone": zone,
            "jitter": "2m",
            "overlap": "allow",
            "misfire": SKIP,
            "steps": [{"job": "job_function", "input": {"a": 1}}],
        },
        "func": {"every": "10m", "zone": zone, "start": "2033-10-10", "misfire": SKIP, "steps": [{"job": "func"}]},
        "f": {
            "every": "30s",
            "zone": zone,
            "misfire": SKIP,
            "steps": [{"job": "f"}],
        },
        "g": {
            "cron": "0 3 * * sat,sun",
            "zone": zone,
            "misfire": {"policy": "skip", "grace_seconds": 600},
            "steps": [{"job": "g"}],
        },
        "g 2": {"every": "7d", "zone": zone, "start": "2033-01-02", "misfire": SKIP, "steps": [{"job": "g"}]},
    }
    assert [str(omission) for omission in found.omissions] == [
        "line 10: 'last' is left out: a cron line cannot count weekdays or days from the end of the month",
        "line 14: 'job_function' is left out: a cron line cannot count weekdays or days from the end of the month",
        "line 17: 'hourly': max_instances=3; runs overlap without a limit, see `limit` of the job",
        "line 18: 'my_job' is left out: it runs once; see `tenuto once`",
        "line 19: 'func': the time of day of start_date; the whole day counts",
        "line 19: 'func': the positional arguments [1]; write them by name, as input",
        "line 19: 'func': coalesce=False; runs that are missed within the grace time become one",
        "line 20: 'f': misfire_grace_time=15; the shortest is 60 s",
        "line 21: 'g': without timezone, CronTrigger(…) uses the zone of its machine, this schedule Europe/Berlin",
        "line 22: 'g' is left out: second=*/5: the shortest period of a cron line is a minute",
        "line 23: 'job' is left out: its function is not written in the file",
        "line 24: 'g' is left out: the trigger AndTrigger(…) has no equivalent",
        "line 25: 'g' is left out: its trigger is computed",
        "line 26: 'g': next_run_time; disable a schedule with `tenuto schedule disable`",
        "without misfire_grace_time, APScheduler skips a run that is 1 s late, these schedules one that is 60 s late; "
        "see `misfire`",
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
        assert "time zone of its machine" in str(found.omissions[-2])
    else:
        assert line in str(found.omissions[0])


def report_lines(found: ImportedDefinitions) -> list[str]:
    return [str(omission) for omission in found.omissions if omission.line is not None]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("s.add_job(f, 'cron', **opts)", "'f' is left out: the arguments of the call are computed"),
        ("s.add_job(*job)", "'job' is left out: the arguments of the call are computed"),
        ("s.scheduled_job('interval', hours=1)(f)", "'job' is left out: its function is not written in the file"),
        ("s.add_job(f, 'cron', hour=1, timezone=TZ)", "'f' is left out: its time zone TZ is computed"),
        ("s.add_job(f, CronTrigger(hour=1, timezone=TZ))", "'f' is left out: its time zone TZ is computed"),
        ("s.add_job(f, CronTrigger.from_crontab('0 1 * * *', TZ))", "'f' is left out: its time zone TZ is computed"),
        ("s.add_job(f, CronTrigger.from_crontab(LINE))", "'f' is left out: its trigger is computed"),
        ("s.add_job(f, 'interval', minutes=None)", "'f' is left out: minutes=None is not a number"),
        ("s.add_job(f, 'interval', minutes='5')", "'f' is left out: minutes='5' is not a number"),
        ("s.add_job(f, 'interval', minutes=1e999)", "'f' is left out: minutes=inf is not a number"),
        ("s.add_job(f, 'cron', day_of_week='²')", "'f' is left out: day_of_week '²' is not a weekday"),
    ],
)
def test_apscheduler_import_refuses_jobs_that_it_cannot_know_with_line_and_reason(source: str, reason: str) -> None:
    found = check(import_apscheduler(f"s = BlockingScheduler(timezone='Europe/Berlin')\n{source}\n", source="jobs.py"))
    assert (found.schedules, report_lines(found)) == ([], [f"line 2: {reason}"])


@pytest.mark.parametrize(
    ("arguments", "report"),
    [
        ("[1, 2]", "the positional arguments [1, 2]; write them by name, as input"),
        ("jitter=J", "jitter=J is not a number in the file"),
        ("max_instances=N", "max_instances=N is not a number in the file"),
        ("misfire_grace_time=G", "misfire_grace_time=G is not a number in the file"),
        ("coalesce=C", "coalesce=C is neither True nor False in the file"),
        ("id=NAME", "the id NAME is computed"),
        ("kwargs={'d': timedelta(days=1)}", "{'d': datetime.timedelta(days=1)} are not JSON values"),
        ("kwargs={'d': ...}", "the keyword arguments {'d': ...} are not JSON values"),
        ("kwargs={'d': 1j}", "the keyword arguments {'d': 1j} are not JSON values"),
        ("kwargs={'d': [{1, 2}]}", "the keyword arguments {'d': [{1, 2}]} are not JSON values"),
        ("kwargs={'d': b'x'}", "the keyword arguments {'d': b'x'} are not JSON values"),
        ("kwargs={1: 'x'}", "the keyword arguments {1: 'x'} are not JSON values"),
        ("kwargs={KEY: 'x'}", "the keyword arguments {KEY: 'x'} are computed"),
    ],
)
def test_apscheduler_import_reports_options_that_it_cannot_carry_over(arguments: str, report: str) -> None:
    found = check(import_apscheduler(f"\ns.add_job(f, 'interval', {arguments})", source="jobs.py", zone="UTC"))
    fields = {"every": "1s", "zone": "UTC", "misfire": SKIP, "steps": [{"job": "f"}]}
    assert by_name(found) == {"f": fields}
    (line,) = report_lines(found)
    assert line.startswith("line 2: 'f': ")
    assert report in line


def test_apscheduler_import_reads_positional_options_and_defaults_of_the_scheduler() -> None:
    found = check(
        import_apscheduler(
            "s = BackgroundScheduler({'apscheduler.timezone': 'Europe/Berlin'},\n"
            "    job_defaults={'misfire_grace_time': None, 'coalesce': False})\n"
            "s.add_job(f, 'interval', None, {'a': 1}, 'first', 'First job', hours=1)\n"
            "s.add_job(f, 'interval', hours=1, misfire_grace_time=600, coalesce=True)\n"
            "t = AsyncIOScheduler(timezone='Europe/London', job_defaults=DEFAULTS)\n"
            "u = AsyncIOScheduler(timezone=TZ)\n"
            "u.configure(**settings)\n",
            source="jobs.py",
        )
    )
    zone = "Europe/Berlin"
    assert by_name(found) == {
        "first": {
            "description": "First job",
            "every": "1h",
            "zone": zone,
            "misfire": "all",
            "steps": [{"job": "f", "input": {"a": 1}}],
        },
        "f": {
            "every": "1h",
            "zone": zone,
            "misfire": {"policy": "skip", "grace_seconds": 600},
            "steps": [{"job": "f"}],
        },
    }
    assert [str(omission) for omission in found.omissions] == [
        "line 5: the time zone Europe/London of a further scheduler; its schedules use Europe/Berlin",
        "line 5: job_defaults=DEFAULTS is computed",
        "line 6: the time zone TZ of the scheduler is computed",
        "line 7: the options of u.configure(…) are computed",
    ]


def test_celery_import_reads_updates_of_the_schedule_or_reports_them() -> None:
    found = check(
        import_celery_beat(
            "app.conf.beat_schedule = {'a': {'task': 't.a', 'schedule': 60}}\n"
            "app.conf.beat_schedule.update({'b': {'task': 't.b', 'schedule': 60}}, c={'task': 't.c', 'schedule': 60})\n"
            "app.conf.beat_schedule |= {'d': {'task': 't.d', 'schedule': 60}}\n"
            "app.conf['beat_schedule']['e'] = {'task': 't.e', 'schedule': 60}\n"
            "app.conf.beat_schedule.update(more)\n"
            "app.conf.beat_schedule |= load()\n"
            "app.conf.beat_schedule.update({'a': {'task': 't.new', 'schedule': 60}, **more})\n"
            "app.conf.beat_schedule.pop('b')\n"
            "app.conf.beat_schedule[NAME] = {'task': 't.f', 'schedule': 60}\n",
            source="x",
            zone="UTC",
        )
    )
    jobs = {name: fields["steps"][0]["job"] for name, fields in by_name(found).items()}
    assert jobs == {"a": "new", "b": "b", "c": "c", "d": "d", "e": "e", "NAME": "f"}
    assert report_lines(found) == [
        "line 1: 'a' is left out: line 7 replaces it",
        "line 5: more in app.conf.beat_schedule.update(…) is left out: its value is computed",
        "line 6: 'beat_schedule' is left out: its value is computed",
        "line 7: more in app.conf.beat_schedule.update(…) is left out: its value is computed",
        "line 8: the call beat_schedule.pop(…) is left out: its result is not known",
        "line 9: 'NAME': the name of the entry is computed",
    ]


@pytest.mark.parametrize(
    ("source", "zone", "report"),
    [
        ("TZ = 'Europe/Berlin'\napp.conf.timezone = TZ", "Europe/Berlin", ""),
        ("app.conf['timezone'] = 'Europe/Berlin'", "Europe/Berlin", ""),
        ("app.conf.update({'timezone': 'Europe/Berlin'})", "Europe/Berlin", ""),
        ("app.conf.update(dict(timezone='Europe/Berlin'))", "Europe/Berlin", ""),
        ("timezone = 'UTC'\ntimezone = 'Europe/Berlin'", "Europe/Berlin", "line 2: the time zone UTC is left out"),
        ("timezone = TZ", "UTC", "line 1: the time zone TZ is left out: its value is computed"),
        ("TZ = 'Asia/Tokyo'\nif home: TZ = 'UTC'\ntimezone = TZ", "UTC", "line 3: the time zone TZ is left out"),
        ("app.conf.update(settings)", "UTC", "line 1: settings in app.conf.update(…) is left out"),
        ("", "UTC", "the file names no time zone, these schedules use UTC"),
    ],
)
def test_celery_import_reads_the_zone_or_reports_utc(source: str, zone: str, report: str) -> None:
    found = check(import_celery_beat(f"{source}\nbeat_schedule = {{'a': {{'task': 't', 'schedule': 60}}}}", source="x"))
    assert by_name(found)["a"]["zone"] == zone
    assert any("these schedules use UTC" in str(omission) for omission in found.omissions) == (zone == "UTC")
    assert not report or str(found.omissions[0]).startswith(report)


@pytest.mark.parametrize(
    ("call", "step", "reports"),
    [
        ("60, add.s(1), args=(2,), kwargs={'k': 3}", {"input": {"k": 3}}, ["the positional arguments [2, 1]"]),
        ("60, add.s(a=1), (), {'k': 3}", {"input": {"a": 1, "k": 3}}, []),
        ("60, add.s(a=1), kwargs=KW", {}, ["the keyword arguments {'a': 1} and KW are computed"]),
        ("60, add.si(a=1), kwargs={'k': 3}", {"input": {"a": 1}}, []),
        ("60, app.signature('tasks.add')", {}, []),
        ("60, signature('tasks.add', kwargs={'a': 1}, queue='q')", {"input": {"a": 1}, "queue": "q"}, []),
        (
            "60, tasks.add.signature((1,), {'a': 1}, countdown=5)",
            {"input": {"a": 1}},
            ["the positional", "countdown=5"],
        ),
        ("60, add.signature(kwargs={'a': 1}), expires=9", {"input": {"a": 1}}, ["the option expires=9"]),
        ("schedule=60, sig=add.s(), name=NAME", {}, ["the name NAME is computed"]),
        ("60, add.s(d=timedelta(days=1))", {}, ["are not JSON values"]),
    ],
)
def test_celery_import_carries_over_the_arguments_of_periodic_tasks(
    call: str, step: dict[str, Any], reports: list[str]
) -> None:
    found = check(import_celery_beat(f"app.add_periodic_task({call})", source="x", zone="UTC"))
    assert [schedule["steps"] for schedule in found.schedules] == [[{"job": "add", **step}]]
    lines = report_lines(found)
    assert len(lines) == len(reports)
    assert all(report in line for report, line in zip(reports, lines, strict=True))


@pytest.mark.parametrize(
    "call", ["60, app.signature(NAME)", "60, get('a.b').s()", "60, task", "*task", "60, x.s().set()"]
)
def test_celery_import_refuses_periodic_tasks_whose_task_is_computed(call: str) -> None:
    found = check(import_celery_beat(f"\napp.add_periodic_task({call})", source="x"))
    assert (found.schedules, report_lines(found)) == (
        [],
        ["line 2: 'add_periodic_task' is left out: its value is computed"],
    )


@pytest.mark.parametrize("schedule", ["1e999", "None", "'5'", "True", "...", "1j", "timedelta(days=1e999 - 1e999)"])
def test_celery_import_refuses_schedules_that_are_no_interval(schedule: str) -> None:
    found = check(import_celery_beat(f"beat_schedule = {{'a': {{'task': 't', 'schedule': {schedule}}}}}", source="x"))
    (line,) = report_lines(found)
    assert found.schedules == []
    assert line.startswith("line 1: 'a' is left out: its schedule ")


def test_python_import_does_not_trust_constants_that_the_source_changes() -> None:
    found = import_apscheduler(
        "A = 5\nB = 5\nC = {'x': 1}\nD = 5\nB += 1\nC['y'] = 2\ndef add(D):\n"
        "    s.add_job(f, 'interval', minutes=A)\n    s.add_job(f, 'interval', minutes=B)\n"
        "    s.add_job(g, 'interval', minutes=A, kwargs=C)\n    s.add_job(f, 'interval', minutes=D)\n",
        source="jobs.py",
    )
    assert by_name(check(found)) == {
        name: {"every": "5m", "zone": "UTC", "misfire": SKIP, "steps": [{"job": name}]} for name in ("f", "g")
    }
    assert report_lines(found) == [
        "line 9: 'f' is left out: its trigger is computed",
        "line 10: 'g': the keyword arguments C are computed",
        "line 11: 'f' is left out: its trigger is computed",
    ]


@pytest.mark.parametrize("convert", [import_celery_beat, import_apscheduler])
def test_python_import_accepts_deeply_nested_expressions(convert: Callable[..., ImportedDefinitions]) -> None:
    nested = "+".join(["x"] * 1500)
    source = f"app.add_periodic_task({nested}, f.s())\ns.add_job(f, 'interval', hours={nested})\n"
    found = check(convert(source, source="x"))
    assert found.schedules == []
    assert len(report_lines(found)) == 1


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
