"""Lists of the HTTP API and their views: the same fields as on the command line, and the same columns as CSV."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts

from tenuto import Step, cron
from tenuto.api.api_route import ApiRoute
from tenuto.api.csv_lists import list_view, prefers_csv
from tenuto.api.list_pages import Items, Page
from tenuto.model.access.actors import Role
from tests.api.conftest import ApiClient
from tests.support import warm_process

DOCUMENTS = {"schedules_versions", "manifests_versions", "tasks_steps"}
"""Lists of documents with a before and after, or of values of a user: they have no columns."""
LISTS = {
    "schedules_list": ("/api/v1/schedules", ("schedule", "list")),
    "ledger_list": ("/api/v1/ledger", ("schedule", "ledger")),
    "manifests_list": ("/api/v1/manifests", ("manifest", "list")),
    "tasks_list": ("/api/v1/tasks", ("task", "list")),
    "activities_list": ("/api/v1/activities", ("activity", "list")),
    "executions_list": ("/api/v1/executions", ("execution", "list")),
    "dead_letters_list": ("/api/v1/dead-letters", ("dead-letter", "list")),
    "batches_list": ("/api/v1/batches", ("batch", "list")),
    "workers_list": ("/api/v1/workers?ended=true", ("worker", "list", "--all")),
    "queues_list": ("/api/v1/queues", ("queue", "list")),
    "keys_list": ("/api/v1/keys", ("key", "list")),
}


def list_routes(service: ApiClient) -> dict[str, ApiRoute]:
    """Return the routes that list records, by operation id."""
    routes = [context.route for context in iter_route_contexts(service.api.routes)]
    return {
        str(route.operation_id): route
        for route in routes
        if isinstance(route, ApiRoute)
        and isinstance(route.response_model, type)
        and issubclass(route.response_model, (Page, Items))
    }


async def fill(service: ApiClient) -> None:
    """Create at least one record of each listed resource."""
    app = service.app
    double, boom = app.jobs.get_job("double"), app.jobs.get_job("boom")
    steps = [[Step.job(double, input={"n": 1}), Step.job(double, input={"n": 2}, name="second")]]
    app.schedule('=Night, with "sums"', cron("0 2 * * *"), steps)
    bills = app.manifest("bills", boom, on_demand=True)
    async with app.worker(), app.scheduler():
        execution = (await app.schedules.run('=Night, with "sums"')).execution_id
        assert execution is not None
        await app.executions.wait(execution, 30)
        batch = await app.bulk_enqueue(bills, [{"why": "no address"}])
        await app.batches.wait(batch.id, 30)
        await app.enqueue(double.using(delay="1h", queue="mail"), 1)


async def test_every_list_route_names_the_view_of_its_records(service: ApiClient) -> None:
    routes = list_routes(service)
    assert {name for name, route in routes.items() if list_view(route.endpoint) is None} == DOCUMENTS
    assert {*LISTS} <= routes.keys()


async def test_lists_have_the_same_fields_over_http_and_on_the_command_line(
    service: ApiClient, url: str, tmp_path: Path
) -> None:
    await fill(service)
    environment = {**os.environ, "TENUTO_DATABASE": url, "TENUTO_HOME": str(service.app.settings.home)}
    for path, command in LISTS.values():
        items = (await service.get_json(path))["items"]
        done = warm_process.run(["-m", "tenuto", *command, "-o", "json"], cwd=tmp_path, env=environment, timeout=60)
        assert done.returncode == 0, done.stderr
        listed = json.loads(done.stdout)
        assert items, path
        assert [{*each} for each in listed] == [{*each} for each in items], path


async def test_lists_as_csv_have_the_columns_of_their_views(service: ApiClient) -> None:
    await fill(service)
    routes = list_routes(service)
    for name, (path, _) in LISTS.items():
        view = list_view(routes[name].endpoint)
        assert view is not None
        response = await service.get(path, headers={"Accept": "text/csv"})
        assert response.headers["content-type"] == "text/csv; charset=utf-8"
        header, *rows = csv.reader(io.StringIO(response.text))
        assert header == view.csv_header()
        assert len(rows) == len((await service.get_json(path))["items"])
        if name == "schedules_list":  # a spreadsheet would take the name for a formula
            assert [row[header.index("name")] for row in rows] == ['\'=Night, with "sums"']


async def test_csv_of_a_page_links_to_the_next_page(service: ApiClient) -> None:
    for number in range(3):
        await service.app.enqueue(service.app.jobs.get_job("double").using(delay="1h"), number)
    found: list[Any] = []
    path = "/api/v1/tasks?limit=2&q=name:double"
    for expected in (2, 1):
        response = await service.get(path, Role.VIEWER, headers={"Accept": "text/csv"})
        rows = [*csv.DictReader(io.StringIO(response.text))]
        assert len(rows) == expected
        found += [row["id"] for row in rows]
        if "link" in response.headers:
            path = "/api/v1/tasks" + response.headers["link"].partition("<")[2].partition(">")[0]
    assert len({*found}) == 3
    assert "q=name%3Adouble" in path


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/csv", True),
        ("application/json, text/csv", False),
        ("text/csv, application/json", True),
        ("application/json;q=0.5, text/csv;q=0.9", True),
        ("text/csv;q=0.2, application/json", False),
        ("text/csv;q=none", False),
        ("text/html, text/csv;q=0", False),
    ],
)
def test_accept_header_decides_between_json_and_csv(accept: str, expected: bool) -> None:
    assert prefers_csv(accept) is expected
