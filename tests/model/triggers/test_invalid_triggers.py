"""Invalid triggers (B89–B92): rejected with the field at fault, without other exceptions or endless searches."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest

from tenuto.errors import Invalid
from tenuto.model.triggers import Trigger, at, cron, every, manual
from tests.support.errors import raises_code

NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)

CRON_LINES: list[tuple[Any, str]] = [
    ("", "cron"),
    ("   ", "cron"),
    ("* * * *", "cron"),
    ("* * * * * *", "cron"),
    ("0 0 2 * * * *", "cron"),
    ("@reboot", "cron"),
    ("@every 5m", "cron"),
    ("@", "cron"),
    (None, "cron"),
    (5, "cron"),
    (["0 2 * * *"], "cron"),
    ("0 2 * * *" + " " * 300, "cron"),
    (",".join(["1"] * 10_000) + " * * * *", "cron"),
    ("0 2 * * mon\x00", "cron"),
    ("\uff10 2 * * *", "cron"),
    ("0 2 * * fr\u0131", "cron"),
    ("0 2 * * \u017fun", "cron"),
    ("0\u00a02 * * *", "cron"),
    (",".join(["1"] * 61) + " * * * *", "cron.minute"),
    ("60 * * * *", "cron.minute"),
    ("-1 * * * *", "cron.minute"),
    ("*/0 * * * *", "cron.minute"),
    ("*/61 * * * *", "cron.minute"),
    ("*/999999999999 * * * *", "cron.minute"),
    ("0-99999999 * * * *", "cron.minute"),
    ("1,,2 * * * *", "cron.minute"),
    (", * * * *", "cron.minute"),
    ("1- * * * *", "cron.minute"),
    ("*-5 * * * *", "cron.minute"),
    ("1-2-3 * * * *", "cron.minute"),
    ("5/ * * * *", "cron.minute"),
    ("*/*/2 * * * *", "cron.minute"),
    ("1.5 * * * *", "cron.minute"),
    ("mon * * * *", "cron.minute"),
    ("000 * * * *", "cron.minute"),
    ("? * * * *", "cron.minute"),
    ("h * * * *", "cron.minute"),
    ("0 24 * * *", "cron.hour"),
    ("0 22-2 * * *", "cron.hour"),
    ("0 */25 * * *", "cron.hour"),
    ("0 0 0 * *", "cron.day_of_month"),
    ("0 0 32 * *", "cron.day_of_month"),
    ("0 0 l * *", "cron.day_of_month"),
    ("0 0 lw * *", "cron.day_of_month"),
    ("0 0 15w * *", "cron.day_of_month"),
    ("0 0 30 2 *", "cron.day_of_month"),
    ("0 0 31 4 *", "cron.day_of_month"),
    ("0 0 31 4,6,9,11 *", "cron.day_of_month"),
    ("0 0 30-31 feb *", "cron.day_of_month"),
    ("0 0 * 0 *", "cron.month"),
    ("0 0 * 13 *", "cron.month"),
    ("0 0 * janvier *", "cron.month"),
    ("0 0 * mai *", "cron.month"),
    ("0 0 * * 8", "cron.day_of_week"),
    ("0 0 * * lun", "cron.day_of_week"),
    ("0 0 * * fri-mon", "cron.day_of_week"),
    ("0 0 * * 5l", "cron.day_of_week"),
    ("0 0 * * mon#2", "cron.day_of_week"),
    ("0 0 * * */8", "cron.day_of_week"),
    ("0 0 */30 2 mon", "cron.day_of_week"),
]

OTHER_OPTIONS: list[tuple[Callable[[], Trigger], str]] = [
    # Zones (B90)
    (lambda: cron("0 2 * * *", zone=""), "zone"),
    (lambda: cron("0 2 * * *", zone="Mars/Olympus"), "zone"),
    (lambda: cron("0 2 * * *", zone="europe/london"), "zone"),
    (lambda: cron("0 2 * * *", zone="Europe"), "zone"),
    (lambda: cron("0 2 * * *", zone="Factory"), "zone"),
    (lambda: cron("0 2 * * *", zone="localtime"), "zone"),
    (lambda: cron("0 2 * * *", zone="../../etc/passwd"), "zone"),
    (lambda: cron("0 2 * * *", zone="/etc/localtime"), "zone"),
    (lambda: cron("0 2 * * *", zone="right/Europe/London"), "zone"),
    (lambda: cron("0 2 * * *", zone="+02:00"), "zone"),
    (lambda: cron("0 2 * * *", zone="Europe/Lon\x00don"), "zone"),
    (lambda: cron("0 2 * * *", zone="x" * 10_000), "zone"),
    (lambda: cron("0 2 * * *", zone=untyped(None)), "zone"),
    (lambda: cron("0 2 * * *", zone=untyped(["Europe/London"])), "zone"),
    # Intervals (B91)
    (lambda: every(0), "every"),
    (lambda: every(0.5), "every"),
    (lambda: every("500ms"), "every"),
    (lambda: every(-60), "every"),
    (lambda: every("-15m"), "every"),
    (lambda: every(1.5), "every"),
    (lambda: every(math.nan), "every"),
    (lambda: every("nanm"), "every"),
    (lambda: every(math.inf), "every"),
    (lambda: every("1e999s"), "every"),
    (lambda: every(10**400), "every"),
    (lambda: every(timedelta.max), "every"),
    (lambda: every("367d"), "every"),
    (lambda: every(untyped(value=True)), "every"),
    (lambda: every(untyped(None)), "every"),
    (lambda: every(untyped([15])), "every"),
    (lambda: every("15"), "every"),
    (lambda: every(""), "every"),
    (lambda: every("15 parsecs"), "every"),
    (lambda: every("1" * 1000 + "m"), "every"),
    # Windows
    (lambda: every("15m", between=("22:00", "22:00")), "between"),
    (lambda: every("15m", between=("22:00", "24:00")), "between"),
    (lambda: every("15m", between=untyped(("22:00",))), "between"),
    (lambda: every("15m", between=untyped("22:00")), "between"),
    (lambda: every("15m", between=untyped(("22:00", "23:00", "23:30"))), "between"),
    (lambda: every("15m", between=untyped(5)), "between"),
    # Anchors
    (lambda: every("15m", anchor=datetime(2031, 1, 1)), "anchor"),  # noqa: DTZ001
    (lambda: every("15m", anchor="2031-01-01T00:00:00"), "anchor"),
    (lambda: every("15m", anchor="soon"), "anchor"),
    (lambda: every("15m", anchor=datetime(1, 1, 1, tzinfo=UTC)), "anchor"),
    (lambda: every("15m", anchor=datetime(9999, 12, 31, tzinfo=UTC)), "anchor"),
    (lambda: every("15m", anchor=untyped(5)), "anchor"),
    # Times
    (lambda: at([]), "times"),
    (lambda: at("24:00"), "times"),
    (lambda: at("6"), "times"),
    (lambda: at("06:60"), "times"),
    (lambda: at("06:00:30"), "times"),
    (lambda: at("6am"), "times"),
    (lambda: at("\uff10\uff16:00"), "times"),
    (lambda: at(time(6, 0, 30)), "times"),
    (lambda: at(time(6, tzinfo=UTC)), "times"),
    (lambda: at(["06:00"] * 1441), "times"),
    (lambda: at(untyped(5)), "times"),
    (lambda: at(untyped([5])), "times"),
    (lambda: at(untyped(None)), "times"),
    # Days
    (lambda: at("06:00", days=[]), "days"),
    (lambda: at("06:00", days=""), "days"),
    (lambda: at("06:00", days="mon,"), "days"),
    (lambda: at("06:00", days="lundi"), "days"),
    (lambda: at("06:00", days="mo"), "days"),
    (lambda: at("06:00", days="mon-"), "days"),
    (lambda: at("06:00", days=untyped([1])), "days"),
    (lambda: at("06:00", days=untyped(1)), "days"),
    (lambda: at("06:00", days=["mon"] * 51), "days"),
    (lambda: at("06:00", days="mon," * 5_000), "days"),
    # Dates
    (lambda: cron("0 2 * * *", start="2031-02-30"), "start"),
    (lambda: cron("0 2 * * *", start="20310101"), "start"),
    (lambda: cron("0 2 * * *", start="2031-1-1"), "start"),
    (lambda: cron("0 2 * * *", start=NOON), "start"),
    (lambda: cron("0 2 * * *", start=date(1, 1, 1)), "start"),
    (lambda: cron("0 2 * * *", end=date(9999, 12, 31)), "end"),
    (lambda: cron("0 2 * * *", start="2031-01-02", end="2031-01-01"), "end"),
    (lambda: cron("0 2 * * *", excluded=["tomorrow"]), "excluded"),
    (lambda: cron("0 2 * * *", excluded=[date(2031, 1, 1)] * 501), "excluded"),
    (lambda: cron("0 2 * * *", excluded=untyped(5)), "excluded"),
    (lambda: cron("0 2 * * *", excluded=untyped({"2031-01-01": 1})), "excluded"),
    # Jitter
    (lambda: cron("0 2 * * *", jitter=-1), "jitter"),
    (lambda: cron("0 2 * * *", jitter=86_401), "jitter"),
    (lambda: cron("0 2 * * *", jitter=0.5), "jitter"),
    (lambda: cron("0 2 * * *", jitter=math.nan), "jitter"),
    # Triggers that never fire
    (lambda: cron("0 0 29 2 *", start="2031-01-01", end="2031-12-31"), "end"),
    (lambda: at("06:00", days="mon", start="2031-05-17", end="2031-05-18"), "end"),
    (lambda: at("06:00", start="2031-05-17", end="2031-05-18", excluded=["2031-05-17", "2031-05-18"]), "excluded"),
    (lambda: cron("0 0 29 2 *", end="2032-12-31", excluded=["2028-02-29", "2032-02-29"]), "excluded"),
    (lambda: every("24h", between=("22:00", "06:00"), anchor="2031-01-01T12:00:00Z"), "every"),
    (lambda: every("7d", days="mon", anchor="2031-05-17T12:00:00Z"), "every"),
    (lambda: every("1h", days="mon", start="2031-05-17", end="2031-05-18"), "end"),
]


def untyped(value: Any) -> Any:
    """A value of a type that the signature does not allow, such as one from a file."""
    return value


@pytest.mark.parametrize(("line", "field"), CRON_LINES)
def test_invalid_cron_line_is_rejected(line: Any, field: str) -> None:
    with pytest.raises(Invalid) as rejected:
        cron(line)
    assert (rejected.value.field, bool(rejected.value.remedy)) == (field, True)
    assert len(str(rejected.value)) < 400


@pytest.mark.parametrize(("make", "field"), OTHER_OPTIONS)
def test_invalid_trigger_option_is_rejected(make: Callable[[], Trigger], field: str) -> None:
    with pytest.raises(Invalid) as rejected:
        make()
    assert rejected.value.field == field
    assert rejected.value.message
    assert len(str(rejected.value)) < 400


@pytest.mark.parametrize(
    "zone", ["Europe/Kyiv", "Europe/Kiev", "EST5EDT", "UTC", "Etc/GMT-14", "America/Argentina/Salta"]
)
def test_old_zone_names_are_accepted(zone: str) -> None:
    assert cron("0 2 * * *", zone=zone).next_after(NOON)


def test_old_and_new_zone_name_have_the_same_runs() -> None:
    old, new = (cron("0 2 * * *", zone=zone) for zone in ("Europe/Kiev", "Europe/Kyiv"))
    assert old.preview(NOON, 400) == new.preview(NOON, 400)


@pytest.mark.parametrize(
    ("wrong", "right"), [("europe/london", "Europe/London"), ("Europe/Lodnon", "Europe/London"), ("utc", "UTC")]
)
def test_misspelt_zone_error_suggests_the_nearest_name(wrong: str, right: str) -> None:
    with raises_code("trigger.zone.unknown") as rejected:
        cron("0 2 * * *", zone=wrong)
    assert rejected.value.remedy == f"did you mean {right}?"


@pytest.mark.parametrize(
    ("line", "explanation"),
    [
        ("0 22-2 * * *", "22-23,0-2"),
        ("* * * * * *", "leave out the seconds"),
        ("*/90 * * * *", "interval"),
        ("0 0 30 2 *", "would never run"),
        ("0 0 */30 2 mon", "less than once in eight years"),
        ("@reboot", "@daily"),
    ],
)
def test_cron_error_message_or_remedy_explains_the_problem(line: str, explanation: str) -> None:
    with pytest.raises(Invalid) as rejected:
        cron(line)
    assert explanation in str(rejected.value)


@pytest.mark.parametrize(
    "trigger", [cron("0 2 * * *"), at("06:00"), every("15m"), manual()], ids=lambda trigger: trigger.kind
)
@pytest.mark.parametrize(
    "instant",
    [
        datetime(2031, 1, 1),  # noqa: DTZ001
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, tzinfo=UTC),
        datetime(9999, 12, 31, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        date(2031, 1, 1),
        None,
        1.0,
    ],
)
def test_trigger_rejects_an_instant_out_of_range_or_without_offset(trigger: Trigger, instant: Any) -> None:
    with pytest.raises(Invalid) as rejected:
        trigger.next_after(instant)
    assert rejected.value.field == "after"


@pytest.mark.parametrize("instant", [datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 12, 31, 23, 59, tzinfo=UTC)])
def test_trigger_accepts_the_first_and_last_valid_instant(instant: datetime) -> None:
    for trigger in (
        cron("0 0 29 2 *", zone="Africa/Monrovia"),
        at("06:00", zone="Pacific/Apia"),
        every("15m", days="mon"),
    ):
        following = trigger.next_after(instant)
        assert following is not None
        assert following > instant


@pytest.mark.parametrize("n", [-1, 1001, 10**9, True, 1.5, None])
def test_trigger_preview_of_invalid_length_is_rejected(n: Any) -> None:
    with pytest.raises(Invalid) as rejected:
        cron("* * * * *").preview(NOON, n)
    assert rejected.value.field == "n"
