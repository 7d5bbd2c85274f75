"""``tenuto import``: print definition files from a crontab, or from source with Celery beat, APScheduler or Airflow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group
from tenuto.cli.output import print_json
from tenuto.cli.parameters import argument, flag, option
from tenuto.definitions.importers.airflow import import_airflow_dags
from tenuto.definitions.importers.apscheduler import import_apscheduler
from tenuto.definitions.importers.celery_beat import import_celery_beat
from tenuto.definitions.importers.crontab import import_crontab
from tenuto.definitions.importers.imported_definitions import ImportedDefinitions
from tenuto.errors import Invalid

_CRONTAB_EXAMPLES = ("- --zone Europe/London > schedules.yaml", "/etc/crontab --system --zone Europe/London")
_CELERY_EXAMPLES = ("proj/celery.py > schedules.yaml", "proj/settings.py --zone Europe/London -o json")
_AIRFLOW_EXAMPLES = ("dags/sales.py > schedules.yaml", "dags/sales.py --zone Europe/London -o json")
_APSCHEDULER_EXAMPLES = ("jobs.py > schedules.yaml", "jobs.py --zone Europe/London -o json")
imports = group(
    "import",
    "Print definition files from other schedulers.",
    *(f"crontab {example}" for example in _CRONTAB_EXAMPLES),
    *(f"celery-beat {example}" for example in _CELERY_EXAMPLES),
    *(f"apscheduler {example}" for example in _APSCHEDULER_EXAMPLES),
    *(f"airflow-dag {example}" for example in _AIRFLOW_EXAMPLES),
)

SourceFile = Annotated[str, argument("FILE", "Python file; - for standard input.")]
Zone = Annotated[str | None, option("ZONE", "Time zone of the schedules, unless the file names one. (default: UTC)")]
OverridingZone = Annotated[
    str | None, option("ZONE", "Time zone of the schedules. (default: that of the file, or UTC)")
]


@command(imports, "crontab", *_CRONTAB_EXAMPLES, shared=("output", "quiet"))
def import_from_crontab(
    session: Session,
    file: Annotated[str, argument("FILE", "Crontab; - for standard input.")],
    system: Annotated[bool, flag("The entries name a user, as in /etc/crontab.", "--system")] = False,
    zone: Zone = None,
) -> int:
    """Print schedules from a crontab.

    Each entry becomes a schedule with a step that runs the command with the shell. Messages say what could not be
    carried over; the file has them as comments. Nothing is changed: review the file, then use `tenuto plan`.
    """
    return _print(session, import_crontab(_read(file), source=_name(file), zone=zone, has_user_field=system))


@command(imports, "celery-beat", *_CELERY_EXAMPLES, shared=("output", "quiet"))
def import_from_celery_beat(session: Session, file: SourceFile, zone: OverridingZone = None) -> int:
    """Print schedules from the source of a Celery app.

    Reads beat_schedule and add_periodic_task. The file is not run, and Celery need not be installed. Steps name jobs
    after the functions of the tasks. Messages say what could not be carried over; the file has them as comments.
    """
    return _convert(session, import_celery_beat, file, zone)


@command(imports, "apscheduler", *_APSCHEDULER_EXAMPLES, shared=("output", "quiet"))
def import_from_apscheduler(session: Session, file: SourceFile, zone: OverridingZone = None) -> int:
    """Print schedules from source that uses APScheduler 3.

    Reads add_job and scheduled_job. The file is not run, and APScheduler need not be installed. Steps name jobs after
    the functions. Messages say what could not be carried over; the file has them as comments.
    """
    return _convert(session, import_apscheduler, file, zone)


@command(imports, "airflow-dag", *_AIRFLOW_EXAMPLES, shared=("output", "quiet"))
def import_from_airflow_dag(session: Session, file: SourceFile, zone: OverridingZone = None) -> int:
    """Print schedules from the source of Airflow DAGs.

    Reads DAGs with Bash, Python and TriggerDagRun operators, decorated tasks, and their order, which becomes that of
    step groups. The file is not run, and Airflow need not be installed. Messages say what could not be carried over;
    the file has them as comments.
    """
    return _convert(session, import_airflow_dags, file, zone)


def _convert(session: Session, convert: Callable[..., ImportedDefinitions], file: str, zone: str | None) -> int:
    return _print(session, convert(_read(file), source=_name(file), zone=zone))


def _print(session: Session, found: ImportedDefinitions) -> int:
    if session.as_json:
        omissions = [{"line": omission.line, "text": omission.text} for omission in found.omissions]
        print_json({"schedules": found.schedules, "not_carried_over": omissions})
    else:
        sys.stdout.write(found.to_yaml())
        session.print_message(*(f"not carried over: {omission}" for omission in found.omissions))
    return exit_codes.OK if found.schedules or not found.omissions else exit_codes.FAILED


def _name(file: str) -> str:
    return "standard input" if file == "-" else file


def _read(file: str) -> str:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return content.decode("utf-8-sig")
    except OSError as error:
        raise Invalid(
            f"cannot read {file}: {error.strerror or error}",
            code="import.source.unreadable",
            field="FILE",
            remedy="name a readable file, or - for standard input",
        ) from error
    except UnicodeDecodeError as error:
        raise Invalid(
            f"{_name(file)} is not UTF-8 text: byte {error.start} is {content[error.start]:#x}",
            code="import.source.not_utf8",
            field="FILE",
            remedy="convert the file to UTF-8",
        ) from error
