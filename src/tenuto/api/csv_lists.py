"""Lists as CSV: a list route that names its view answers ``Accept: text/csv`` with the columns of that view."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, urlencode

from fastapi import Request, Response

from tenuto.api.list_pages import Items, Page
from tenuto.presentation.columns import ResourceView, csv_line

CSV_TYPE = "text/csv"
_VIEW_ATTRIBUTE = "tenuto_list_view"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[Page[Any] | Items[Any]]])


def listed_as(view: ResourceView) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator of list endpoints, below that of the router, which adds the list as CSV.

    The parameter of the endpoint that holds the `ApiCall` is named ``call``.
    """

    def decorate(endpoint: Endpoint) -> Endpoint:
        @functools.wraps(endpoint)
        async def list_records(*args: Any, **parameters: Any) -> Any:
            listed = await endpoint(*args, **parameters)
            request: Request = parameters["call"].request
            return _as_csv(view, listed, request) if prefers_csv(request.headers.get("accept", "")) else listed

        setattr(list_records, _VIEW_ATTRIBUTE, view)
        return cast(Endpoint, list_records)

    return decorate


def list_view(endpoint: Callable[..., Any]) -> ResourceView | None:
    """Return the view that a list endpoint names; None for other endpoints."""
    return getattr(endpoint, _VIEW_ATTRIBUTE, None)


def prefers_csv(accept: str) -> bool:
    """Return whether the value of an Accept header names CSV, and JSON neither before it nor with a higher weight."""
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        media_type, *parameters = (text.strip() for text in part.split(";"))
        weights.setdefault(media_type, _weight(parameters))
    csv_weight, json_weight = weights.get(CSV_TYPE, 0.0), weights.get("application/json", 0.0)
    if csv_weight == json_weight:
        return csv_weight > 0 and next(each for each in weights if each in (CSV_TYPE, "application/json")) == CSV_TYPE
    return csv_weight > json_weight


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _as_csv(view: ResourceView, listed: Page[Any] | Items[Any], request: Request) -> Response:
    """Return the records as CSV; the address of the next page is in the header `Link`."""
    lines = [csv_line(view.csv_header()), *(csv_line(view.csv_row(record)) for record in listed.items)]
    headers = {"Vary": "Accept"}
    if isinstance(listed, Page) and listed.next is not None:
        query = [each for each in parse_qsl(request.url.query, keep_blank_values=True) if each[0] != "after"]
        headers["Link"] = f'<?{urlencode([*query, ("after", listed.next)])}>; rel="next"'
    return Response("".join(lines), media_type=f"{CSV_TYPE}; charset=utf-8", headers=headers)
