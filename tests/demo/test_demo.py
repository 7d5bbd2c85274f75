"""The demo: a week of consistent, labelled history in an empty database, and refusal of any other database."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.cli.admin.services import open_browser
from tenuto.demo.application import BILLS, INSTALLATION_NAME, MAIL_QUEUE, NIGHTLY
from tenuto.demo.preparation import prepare_demo
from tenuto.model.doctor_findings import Severity
from tests.support.errors import raises_code


async def make_demo(url: str, home: Path) -> tuple[Tenuto, list[str]]:
    app, messages = Tenuto(url, home=home), list[str]()
    await prepare_demo(app, messages.append)
    return app, messages


@pytest.mark.slow
async def test_demo_creates_a_week_of_labelled_history(url: str, tmp_path: Path) -> None:
    app, [message] = await make_demo(url, tmp_path)
    assert message.startswith("created 7 days of example history: ")
    async with app:
        now = (await app.open()).clock.now()
        nights = await app.executions.list(f'schedule:"{NIGHTLY}"', limit=50)
        assert len(nights) == 7
        assert {each.state for each in nights} == {"completed", "failed"}
        assert all(now - timedelta(days=8) < each.started_at < now for each in nights)
        assert {(each.ended_at or now) - each.started_at > timedelta(minutes=2) for each in nights} == {True}
        outcomes = Counter(str(each.state) for each in await app.activities(limit=500))
        assert outcomes["completed"] > 100
        assert outcomes["failed"] > 5
        assert len({each.fingerprint for each in await app.dead_letters.list(limit=100)}) == 2
        [series] = (await app.reports.series("7d")).series
        assert series.total.completed_count > 1000
        overview = await app.reports.overview()
        assert [each.name for each in overview.paused] == [MAIL_QUEUE]
        assert all(each.description.startswith("Example:") for each in await app.schedules.list())
        assert {each.initiator_name for each in await app.batches.list()} == {"ana (example)", "ben (example)"}
        assert app.settings.web_name == INSTALLATION_NAME
        findings = await app.doctor()
        assert [each.title for each in findings if each.severity is Severity.PROBLEM] == []


@pytest.mark.slow
async def test_demo_keeps_the_data_of_the_last_start(url: str, tmp_path: Path) -> None:
    await make_demo(url, tmp_path)
    app, [message] = await make_demo(url, tmp_path)
    assert message == "continuing with the example data of the last start"
    async with app:
        assert len(await app.batches.list(f"manifest:{BILLS}")) == 8


async def test_demo_refuses_a_database_that_is_in_use(url: str, tmp_path: Path) -> None:
    async with Tenuto(url, home=tmp_path) as app:

        @app.job
        async def real() -> None:
            pass

        app.manifest("real", real, on_demand=True)
        await app.manifests.deploy()
        await app.enqueue(real)
    with raises_code("demo.database.not_empty"):
        await make_demo(url, tmp_path)


def test_browser_is_not_opened_without_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert open_browser("http://127.0.0.1:1/") is False
