"""Import of crontabs: what becomes a schedule, and what is reported."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto.definitions.definition_files import parse_schedules
from tenuto.definitions.document_parser import parse_document
from tenuto.definitions.importers.crontab import import_crontab
from tenuto.definitions.importers.imported_definitions import ImportedDefinitions


def convert(text: str, **options: Any) -> ImportedDefinitions:
    found = import_crontab(text, source="crontab", **options)
    document = parse_document("import.yaml", found.to_yaml().encode())
    assert len(parse_schedules([document])) == len(found.schedules), "the printed file is a definition file"
    return found


def scripts(found: ImportedDefinitions) -> list[str]:
    return [schedule["steps"][0]["arguments"]["args"][1] for schedule in found.schedules]


def reports(found: ImportedDefinitions) -> list[str]:
    return [str(omission) for omission in found.omissions if omission.line is not None]


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ("0 5 * * 1 tar -zcf /var/backups/home.tgz /home/", "0 5 * * 1"),
        ("5 0 * * *       $HOME/bin/daily.job >> $HOME/tmp/out 2>&1", "5 0 * * *"),
        ("15 14 1 * *     $HOME/bin/monthly", "15 14 1 * *"),
        ("23 0-23/2 * * * echo run", "23 0-23/2 * * *"),
        ("5 4 * * sun     echo run", "5 4 * * sun"),
        ("5 4 * * SUN     echo run", "5 4 * * SUN"),
        ("0 */4 1,15 jan-mar 7 x", "0 */4 1,15 jan-mar 7"),
        ("\t 1\t2\t*\t*\t*\tx", "1 2 * * *"),
        ("-*/15 * * * * x", "*/15 * * * *"),
        ("@hourly x", "@hourly"),
        ("@midnight   x", "@midnight"),
        ("@annually x", "@annually"),
    ],
)
def test_crontab_entry_becomes_a_schedule_with_its_line(entry: str, line: str) -> None:
    (schedule,) = convert(entry).schedules
    assert (schedule["cron"], schedule["zone"]) == (line, "UTC")
    assert schedule["misfire"] == "skip", "cron does not make up for missed runs"


def test_crontab_command_runs_with_the_shell_variables_and_input_of_cron() -> None:
    found = convert(
        "SHELL=/bin/bash\n"
        'PATH = "/opt/my tools:/usr/bin"\n'
        "EMPTY=\n"
        "'QUOTED'='it is'\n"
        "HOME=/srv/app\n"
        '0 22 * * 1-5 mail -s "It\'s 10\\% done" joe%Joe,%%Where are your kids?%\n'
        "EMPTY=full\n"
        "0 23 * * * late\n"
    )
    mail, late = found.schedules
    arguments = mail["steps"][0]["arguments"]
    assert (arguments["program"], arguments["folder"]) == ("/bin/bash", "/srv/app")
    assert arguments["args"] == [
        "-c",
        "export SHELL=/bin/bash\nexport PATH='/opt/my tools:/usr/bin'\nexport EMPTY=''\nexport QUOTED='it is'\n"
        "export HOME=/srv/app\nmail -s \"It's 10% done\" joe",
    ]  # fmt: skip
    assert arguments["stdin"] == "Joe,\n\nWhere are your kids?\n\n"
    assert "stdin" not in late["steps"][0]["arguments"]
    assert "export EMPTY=full\n" in late["steps"][0]["arguments"]["args"][1], "variables apply to the lines below"


def test_crontab_entries_are_named_after_their_programs_and_described_by_their_comments() -> None:
    found = convert(
        "# m h  dom mon dow   command\n"
        "# Nightly backup\n"
        "0 1 * * * /srv/backup.sh --all\n"
        "# 0 9 * * * /srv/former.sh\n"
        "0 2 * * * cd /srv/app && LANG=C ./manage.py clearsessions\n"
        "# About the file\n\n"
        "0 3 * * * /srv/backup.sh --small\n"
        "0 4 * * * [ -x /usr/bin/x ] || echo 'a; b\n"
    )
    assert [schedule["name"] for schedule in found.schedules] == ["backup.sh", "manage.py", "backup.sh 2", "echo"]
    assert [schedule.get("description") for schedule in found.schedules] == ["Nightly backup", None, None, None]


def test_crontab_zone_is_that_of_the_file_or_the_option_and_its_absence_is_reported() -> None:
    text = "0 1 * * * a\nCRON_TZ=Europe/Berlin\n0 2 * * * b\n"
    assert [schedule["zone"] for schedule in convert(text).schedules] == ["UTC", "Europe/Berlin"]
    assert any("time zone of its machine" in str(omission) for omission in convert(text).omissions)
    found = convert(text, zone="Europe/London")
    assert [schedule["zone"] for schedule in found.schedules] == ["Europe/London", "Europe/Berlin"]
    assert not any("time zone of its machine" in str(omission) for omission in found.omissions)


def test_crontab_with_an_empty_zone_returns_to_the_default_zone() -> None:
    text = "CRON_TZ=Europe/Berlin\n0 1 * * * a\nCRON_TZ=\n0 2 * * * b\n"
    assert [schedule["zone"] for schedule in convert(text).schedules] == ["Europe/Berlin", "UTC"]
    assert any("time zone of its machine" in str(omission) for omission in convert(text).omissions)
    found = convert(text, zone="Europe/London")
    assert [schedule["zone"] for schedule in found.schedules] == ["Europe/Berlin", "Europe/London"]


def test_crontab_home_applies_to_the_lines_below_and_is_exported() -> None:
    found = convert("0 1 * * * a\nHOME=/srv/app\n0 2 * * * b\n")
    assert scripts(found) == ["a", "export HOME=/srv/app\nb"]
    assert any("home folder of the user" in str(omission) for omission in found.omissions), "line 1 has no folder"


def test_crontab_with_a_shell_without_export_has_no_variables() -> None:
    found = convert("SHELL=/usr/bin/fish\n0 1 * * * a\nX=1\n0 2 * * * b\n")
    assert scripts(found) == ["a"]
    assert reports(found) == [
        "line 4: 'b' is left out: /usr/bin/fish does not read the `export` that sets X; see the argument env"
    ]


def test_system_crontab_has_a_user_in_each_entry() -> None:
    text = (
        "17 *\t* * *\troot    cd / && run-parts --report /etc/cron.hourly\n25 6 * * * root\n@daily backup  x  y\n"
        "0 1 * * *\troot\tcd / && x\n0 1 * * *\troot\ty\n"
    )
    found = convert(text, has_user_field=True)
    assert scripts(found) == ["cd / && run-parts --report /etc/cron.hourly", "x  y", "cd / && x", "y"]
    assert reports(found) == [
        "line 1: user root: the command runs as the user of the worker",
        "line 2: '25 6 * * * root' has no command after the user",
        "line 3: user backup: the command runs as the user of the worker",
        "line 4: user root: the command runs as the user of the worker",
        "line 5: user root: the command runs as the user of the worker",
    ]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("@reboot /usr/bin/start", "there is no such trigger"),
        ("@fortnightly x", "@fortnightly"),
        ("0~30 1 * * * x", "random ranges"),
        ("*/90 * * * * x", "'*/90'"),
        ("0 0 31 2 * x", "would never run"),
        ("61 * * * * x", "61"),
        ("0 0 * * foo x", "foo"),
        ("0 0 L * * x", "day of month"),
        ("1 2 3", "missing"),
        ("MAILTO=root", "no address; output is in the log of each attempt"),
        ("RANDOM_DELAY=45", "jitter"),
        ("LOGNAME=root", "user of the worker"),
    ],
)
def test_crontab_line_that_cannot_be_carried_over_is_reported_with_its_number(entry: str, reason: str) -> None:
    found = convert(f"# first\n{entry}\n0 1 * * * good\n")
    assert len(found.schedules) == 1
    (report,) = reports(found)
    assert report.startswith("line 2: ")
    assert reason.lower() in report.lower()
    assert f"# - {report}" in found.to_yaml()


def test_crontab_comment_cannot_escape_into_the_definition_file() -> None:
    found = convert("MAILTO=a\u2028schedules:\x85x\n@reboot a\x1b[31m\rb\n")
    assert found.schedules == []
    assert all(line.startswith("#") for line in found.to_yaml().splitlines()[:-1] if line)
    assert "\x1b" not in found.to_yaml()


def test_empty_crontab_gives_an_empty_definition_file() -> None:
    found = convert("# nothing\n\n")
    assert (found.schedules, found.omissions) == ([], [])
