"""Triggers: descriptions in plain English, and strict conversion from plain data and JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenuto.errors import Invalid
from tenuto.model.triggers import Trigger, at, cron, every, manual, trigger_from_fields, trigger_from_json

DESCRIPTIONS: list[tuple[Trigger, str]] = [
    (at(["06:00", "18:30"], days="weekdays", zone="Europe/London"), "Every weekday at 06:00 and 18:30, Europe/London"),
    (at(["06:00", "12:00", "18:30"]), "Every day at 06:00, 12:00 and 18:30, UTC"),
    (at("07:15", days="weekends"), "Every Saturday and Sunday at 07:15, UTC"),
    (at([f"{hour}:10" for hour in range(20)]), "Every day at 20 times from 00:10 to 19:10, UTC"),
    (cron("0 2 * * *", zone="Europe/London"), "Every day at 02:00, Europe/London"),
    (cron("30 6,18 * * 1-5"), "Every weekday at 06:30 and 18:30, UTC"),
    (cron("0 9 * * mon,fri"), "Every Monday and Friday at 09:00, UTC"),
    (cron("* * * * *"), "Every minute, UTC"),
    (cron("*/5 * * * *"), "Every 5 minutes, UTC"),
    (cron("*/15 9-17 * * mon-fri"), "Every 15 minutes from 09:00 to 17:45 on weekdays, UTC"),
    (cron("* 9 * * *"), "Every minute from 09:00 to 09:59, UTC"),
    (cron("*/30 1,3 * * *"), "Every 30 minutes in the hours 1 and 3, UTC"),
    (cron("@hourly"), "Every hour, UTC"),
    (cron("17 * * * *"), "Every hour at minute 17, UTC"),
    (cron("1,2,3,40 * * * sat"), "Every hour at minutes 1 to 3 and 40 on Saturdays, UTC"),
    (cron("0 */6 * * *"), "Every 6 hours from 00:00, UTC"),
    (cron("15 */8 1 * *"), "Every 8 hours from 00:15 on day 1 of the month, UTC"),
    (cron("*/7 * * * *"), "Every hour at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56, UTC"),
    (cron("1-7 1-20 * jun 0"), "At minutes 1 to 7 of the hours 1 to 20 on Sundays in June, UTC"),
    (cron("@weekly"), "Every Sunday at 00:00, UTC"),
    (cron("@monthly"), "On day 1 of the month at 00:00, UTC"),
    (cron("30 6 1,15 jan,jul *"), "On days 1 and 15 of January and July at 06:30, UTC"),
    (cron("0 0 * 12 *"), "Every day in December at 00:00, UTC"),
    (cron("0 0 1 1 mon"), "In January, on day 1 and every Monday at 00:00, UTC"),
    (cron("59 23 31 dec fri"), "In December, on day 31 and every Friday at 23:59, UTC"),
    (cron("0 6 13 * fri"), "On day 13 of the month and every Friday at 06:00, UTC"),
    (cron("*/5 * 1,15 jan-feb mon"), "Every 5 minutes in January and February, on days 1 and 15 and on Mondays, UTC"),
    (cron("*/20 * 13 * fri"), "Every 20 minutes on day 13 of the month and on Fridays, UTC"),
    (cron("0 0 */10 * mon"), "Every Monday that falls on day 1, 11, 21 or 31 of the month at 00:00, UTC"),
    (cron("* * */10 * mon"), "Every minute on every Monday that falls on day 1, 11, 21 or 31 of the month, UTC"),
    (every("15m"), "Every 15 minutes, UTC"),
    (every("1h"), "Every hour, UTC"),
    (every(90), "Every 90 seconds, UTC"),
    (every("1d"), "Every 24 hours, UTC"),
    (every("7d"), "Every 7 × 24 hours, UTC"),
    (
        every("15m", between=("22:00", "06:00"), days="mon,wed", zone="Asia/Tokyo"),
        "Every 15 minutes from 22:00 to 06:00 on Mondays and Wednesdays, Asia/Tokyo",
    ),
    (
        every("1h", anchor="2031-05-17T12:07:00+02:00"),
        "Every hour in step with 2031-05-17 10:07:00 UTC, UTC",
    ),
    (
        cron("0 2 * * *", start="2031-05-01", end="2031-06-30", excluded=["2031-05-05"], jitter="5m"),
        "Every day at 02:00, UTC, from 2031-05-01, until 2031-06-30, except 2031-05-05, spread over 5 minutes",
    ),
    (
        cron("0 2 * * *", excluded=[f"2031-05-0{day}" for day in range(1, 8)], jitter=3600),
        "Every day at 02:00, UTC, except 7 dates, spread over 1 hour",
    ),
    (manual(), "Only when started by hand"),
]

FIELDS: list[tuple[Trigger, dict[str, Any]]] = [
    (manual(), {"kind": "manual"}),
    (cron("0  2 * * MON"), {"kind": "cron", "cron": "0 2 * * mon", "zone": "UTC"}),
    (
        at(["18:30", "6:00"], days="weekends", zone="Europe/London", start="2031-05-01"),
        {
            "kind": "times",
            "times": ["06:00", "18:30"],
            "days": ["sat", "sun"],
            "zone": "Europe/London",
            "start": "2031-05-01",
        },
    ),
    (
        every("15m", between=("22:00", "06:00"), anchor="2031-05-17T12:07:00+02:00", jitter=60),
        {
            "kind": "interval",
            "every": 900,
            "between": ["22:00", "06:00"],
            "anchor": "2031-05-17T10:07:00+00:00",
            "zone": "UTC",
            "jitter": 60,
        },
    ),
    (
        cron("@daily", end="2031-12-31", excluded=["2031-12-25"]),
        {"kind": "cron", "cron": "@daily", "zone": "UTC", "end": "2031-12-31", "excluded": ["2031-12-25"]},
    ),
]


@pytest.mark.parametrize(
    ("trigger", "description"), DESCRIPTIONS, ids=lambda given: given if isinstance(given, str) else ""
)
def test_trigger_description(trigger: Trigger, description: str) -> None:
    assert trigger.describe() == description


@pytest.mark.parametrize(("trigger", "fields"), FIELDS)
def test_trigger_fields_round_trip(trigger: Trigger, fields: dict[str, Any]) -> None:
    assert trigger.to_fields() == fields
    assert json.loads(trigger.to_json()) == fields
    assert trigger_from_fields(fields) == trigger
    assert trigger_from_json(trigger.to_json()) == trigger


@pytest.mark.parametrize(
    ("trigger", "_description"), DESCRIPTIONS, ids=lambda given: given if isinstance(given, str) else ""
)
def test_trigger_json_round_trip(trigger: Trigger, _description: str) -> None:
    assert trigger_from_json(trigger.to_json()) == trigger


def test_trigger_fields_accept_text_forms() -> None:
    fields = {"kind": "interval", "every": "15m", "days": "weekdays", "start": None}
    assert trigger_from_fields(fields) == every("15m", days="weekdays")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "trigger"),
        ("nonsense", "trigger"),
        ("[]", "trigger"),
        ("null", "trigger"),
        ('"0 2 * * *"', "trigger"),
        ("[" * 50_000, "trigger"),
        ('{"kind": "cron", "cron": "' + "0" * 70_000 + '"}', "trigger"),
        ('{"kind": "interval", "every": ' + "9" * 5000 + "}", "trigger"),
        ("{}", "kind"),
        ('{"kind": "cronn", "cron": "0 2 * * *"}', "kind"),
        ('{"kind": ["cron"]}', "kind"),
        ('{"kind": "manual", "zone": "UTC"}', "zone"),
        ('{"kind": "cron"}', "cron"),
        ('{"kind": "times"}', "times"),
        ('{"kind": "interval"}', "every"),
        ('{"kind": "cron", "cron": "0 2 * * *", "timezone": "UTC"}', "timezone"),
        ('{"kind": "cron", "cron": "0 2 * * *", "days": ["mon"]}', "days"),
        ('{"kind": "cron", "cron": "0 2 * * *", "__class__": "os.system"}', "__class__"),
        ('{"kind": "cron", "cron": "0 2 * * *", "cron": "0 3 * * *"}', "cron"),
        ('{"kind": "cron", "cron": 5}', "cron"),
        ('{"kind": "cron", "cron": "0 2 * * *", "zone": null}', "zone"),
        ('{"kind": "cron", "cron": "0 2 * * *", "excluded": null}', "excluded"),
        ('{"kind": "interval", "every": NaN}', "every"),
        ('{"kind": "interval", "every": true}', "every"),
        ('{"kind": "interval", "every": {"minutes": 15}}', "every"),
        ('{"kind": "interval", "every": 900, "anchor": "2031-05-17T12:00:00"}', "anchor"),
        ('{"kind": "times", "times": {"06:00": 1}}', "times"),
    ],
    ids=lambda text: text[:60],
)
def test_invalid_trigger_json_is_rejected(text: str, field: str) -> None:
    with pytest.raises(Invalid) as rejected:
        trigger_from_json(text)
    assert rejected.value.field == field
