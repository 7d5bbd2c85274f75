"""Timeline: marks of past executions and coming runs, numbers instead of too many marks, clock times of the viewer."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tenuto import Step, every
from tenuto.testing import run_until_idle
from tenuto.web.view_cache import ViewCache
from tenuto.web.views import timeline
from tenuto.web.views.timeline import MAX_MARKS, Mark, draw_ticks, load_timeline
from tests.api.conftest import ApiClient
from tests.web.conftest import get_page, log_in


async def make_schedules(service: ApiClient) -> None:
    app = service.app
    double, boom = app.jobs.jobs_by_name["double"], app.jobs.jobs_by_name["boom"]
    app.schedule("hourly", every("1h"), [Step.job(double, 1)])
    app.schedule("often", every("1m"), [Step.job(double, 1)])
    app.schedule("fails", every("12h"), [Step.job(boom, "x")])
    await app.schedules.deploy()
    for _ in range(2):
        await app.schedules.run("hourly")
        await run_until_idle(app)
    await app.schedules.run("fails")
    await run_until_idle(app)


async def test_timeline_shows_past_executions_and_coming_runs_of_each_schedule(service: ApiClient) -> None:
    await make_schedules(service)
    model = await load_timeline(service.app, ViewCache(), "24h", None, "", "name", "UTC")
    lanes = {lane.record.name: lane for lane in model.lanes}
    assert list(lanes) == ["fails", "hourly", "often"]
    assert [mark.tone for mark in lanes["hourly"].past] == ["done", "done"]
    assert lanes["hourly"].past_text == "2 completed"
    assert [mark.tone for mark in lanes["fails"].past] == ["fail"]
    assert 11 <= len(lanes["hourly"].coming) <= 13
    assert model.now_x is not None
    assert all(mark.x >= model.now_x - 0.1 for mark in lanes["hourly"].coming)
    [band] = lanes["often"].coming
    assert band.kind == "plan-count"
    assert "upcoming" in lanes["often"].coming_text
    by_next_run = await load_timeline(service.app, ViewCache(), "24h", None, "", "next", "UTC")
    assert [lane.record.name for lane in by_next_run.lanes] == ["often", "hourly", "fails"]


async def test_timeline_counts_executions_that_are_too_many_to_draw(service: ApiClient) -> None:
    await make_schedules(service)
    for _ in range(MAX_MARKS):
        await service.app.schedules.run("hourly")
        await run_until_idle(service.app)
    model = await load_timeline(service.app, ViewCache(), "6h", None, "hourly", "name", "UTC")
    [lane] = model.lanes
    assert {mark.kind for mark in lane.past} == {"past-count"}
    assert sum(int(mark.title.split()[0]) for mark in lane.past) == MAX_MARKS + 2


async def test_timeline_simulates_again_only_after_a_change_of_a_definition(service: ApiClient) -> None:
    await make_schedules(service)
    simulations = ViewCache(60)

    async def count_coming() -> int:
        model = await load_timeline(service.app, simulations, "24h", None, "hourly", "name", "UTC")
        return len(model.lanes[0].coming)

    assert await count_coming() > 0
    [first] = simulations._entries.values()
    assert await count_coming() > 0
    assert list(simulations._entries.values()) == [first]
    await service.app.schedules.disable("hourly")
    assert await count_coming() == 0


async def test_timeline_draws_the_coming_runs_of_a_lane_once(service: ApiClient) -> None:
    await make_schedules(service)
    simulations = ViewCache(60)

    async def load(zone: str) -> dict[str, Sequence[Mark]]:
        model = await load_timeline(service.app, simulations, "24h", None, "", "name", zone)
        return {lane.record.name: lane.coming for lane in model.lanes}

    first, again, elsewhere = await load("UTC"), await load("UTC"), await load("Asia/Tokyo")
    assert [id(each) for each in first["hourly"]] == [id(each) for each in again["hourly"]]
    assert "UTC" in first["hourly"][0].title
    assert "Asia/Tokyo" in elsewhere["hourly"][0].title


async def test_timeline_of_many_schedules_has_pages(service: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_LANES", 2)
    await make_schedules(service)
    await log_in(service)
    first = (await get_page(service, "/timeline?order=name")).text
    assert 'href="/schedules/hourly"' in first
    assert 'href="/schedules/often"' not in first
    following = html.unescape(re.search(r'<a class="button" rel="next" href="([^"]+)"', first)[1])  # type: ignore[index]
    second = (await get_page(service, following)).text
    assert 'href="/schedules/often"' in second
    assert 'href="/schedules/hourly"' not in second
    assert 'rel="next"' not in second
    note = "Each page has 2 schedules by name; the order by next run is that of this page only."
    assert note not in first + second
    by_next_run = (await get_page(service, "/timeline?order=next")).text
    assert note in by_next_run
    assert note in (await get_page(service, following.replace("order=name", "order=next"))).text
    assert note not in (await get_page(service, "/timeline?order=next&search=hourly")).text


async def test_timeline_window_can_be_moved_and_filtered(service: ApiClient) -> None:
    await make_schedules(service)
    await log_in(service)
    page = (await get_page(service, "/timeline?window=6h&search=hour")).text
    assert 'href="/schedules/hourly"' in page
    assert 'href="/schedules/often"' not in page
    past = datetime.now(UTC) - timedelta(days=3)
    earlier = (await get_page(service, f"/timeline?window=6h&at={past:%Y-%m-%dT%H:%M:%SZ}")).text
    assert 'class="now"' not in earlier
    assert "upcoming" not in earlier
    assert "request.invalid" in (await get_page(service, "/timeline?window=5h", 422)).text


def test_timeline_ticks_follow_the_clock_of_the_viewer_across_a_clock_change() -> None:
    start = datetime(2026, 3, 28, 18, 0, tzinfo=UTC)
    ticks = draw_ticks(start, start + timedelta(hours=24), ZoneInfo("Europe/London"), 3)
    labels = [tick.label for tick in ticks]
    assert labels == ["21:00", "Sun 29", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00"]
    positions = [tick.x for tick in ticks]
    assert round(positions[2] - positions[1], 1) == 8.3  # two hours: the clock goes from 01:00 to 02:00
    assert round(positions[3] - positions[2], 1) == 12.5
