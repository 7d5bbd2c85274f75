"""Jobs and their typed input (J9): what fits the signature gets in, the rest is refused by the name of its field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pydantic
import pytest

from tenuto import Context, Job, RetryPolicy, Tenuto
from tenuto.errors import Invalid, UnknownJob
from tenuto.model.policies import Policy
from tenuto.model.stored_values import MAX_INPUT


class Colour(StrEnum):
    RED = "red"


@dataclass
class Slice:
    table: str
    part: int = 0


class Order(pydantic.BaseModel):
    id: UUID
    lines: list[str] = []
    due: datetime | None = None


@pytest.fixture
def app(tmp_path: Path) -> Tenuto:
    """No database is needed to define jobs."""
    return Tenuto("postgresql://nobody@nowhere.invalid/none", home=tmp_path)


def trip(job: Job[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Arguments after they were stored."""
    return job.load_input(job.dump_input(args, kwargs))


def refusal(job: Job[..., Any], *args: Any, **kwargs: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        job.dump_input(args, kwargs)
    return caught.value


# --- what gets in --------------------------------------------------------------------------------------------------


def test_plain_arguments_pass_by_place_and_by_name(app: Tenuto) -> None:
    @app.job
    def bake(flour: int, water: float, name: str, fast: bool) -> None: ...

    wanted = {"flour": 1, "water": 0.5, "name": "rye", "fast": True}
    assert trip(bake, 1, 0.5, "rye", True) == trip(bake, 1, 0.5, name="rye", fast=True) == wanted
    assert trip(bake, **wanted) == wanted


def test_defaults_are_filled_in_when_the_task_is_made(app: Tenuto) -> None:
    @app.job
    def bake(flour: int, water: int = 7, *, salt: int | None = None) -> None: ...

    assert json.loads(bake.dump_input((1,), {})) == {"flour": 1, "water": 7, "salt": None}


def test_arguments_by_keyword_only_are_taken_by_keyword_only(app: Tenuto) -> None:
    @app.job
    def bake(*, flour: int) -> None: ...

    assert trip(bake, flour=3) == {"flour": 3}
    assert "takes" in str(refusal(bake, 3))


def test_dataclasses_models_and_rich_types_come_back_as_what_they_were(app: Tenuto) -> None:
    @app.job
    def bake(
        slice: Slice,
        order: Order,
        when: datetime,
        wait: timedelta,
        where: Path,
        colour: Colour,
        some: set[int],
        pair: tuple[int, str],
        table: dict[str, list[Slice]],
        small: Annotated[int, pydantic.Field(lt=10)],
    ) -> None: ...

    given = {
        "slice": Slice("users", 3),
        "order": Order(id=UUID(int=1), lines=["a"], due=datetime(2031, 1, 1, tzinfo=UTC)),
        "when": datetime(2031, 1, 1, tzinfo=UTC),
        "wait": timedelta(minutes=5),
        "where": Path("/tmp/x"),
        "colour": Colour.RED,
        "some": {1, 2},
        "pair": (1, "a"),
        "table": {"a": [Slice("b")]},
        "small": 9,
    }
    assert trip(bake, **given) == given


def test_the_context_is_no_part_of_the_input_wherever_it_stands(app: Tenuto) -> None:
    @app.job
    def first(ctx: Context, flour: int) -> None: ...

    @app.job
    def last(flour: int, *, context: Context) -> None: ...

    assert (first.context_parameter, last.context_parameter) == ("ctx", "context")
    assert trip(first, 3) == trip(last, 3) == {"flour": 3}
    assert "ctx" in str(refusal(first, flour=1, ctx=2))


def test_a_job_without_arguments_takes_none(app: Tenuto) -> None:
    @app.job
    def bake() -> None: ...

    assert trip(bake) == {}
    assert refusal(bake, flour=1).field == "flour"
    assert "takes 0 arguments" in str(refusal(bake, 1))


def test_an_argument_given_by_place_and_by_name_is_refused(app: Tenuto) -> None:
    @app.job
    def bake(flour: int) -> None: ...

    assert refusal(bake, 1, flour=2).field == "flour"


def test_parameters_may_be_named_like_parts_of_a_model(app: Tenuto) -> None:
    @app.job
    def bake(model_config: int, schema: int, json: int, self: int, copy: int = 1, _private: int = 2) -> None: ...

    given = {"model_config": 1, "schema": 2, "json": 3, "self": 4, "copy": 5, "_private": 6}
    assert trip(bake, **given) == given


def test_json_from_outside_is_checked_and_brought_into_form(app: Tenuto) -> None:
    @app.job
    def bake(flour: int, slice: Slice, salt: bool = False) -> None: ...

    text = bake.check_input('{"slice": {"table": "t", "part": "4"}, "flour": 1, "flour": 2}')
    assert json.loads(text) == {"flour": 2, "slice": {"table": "t", "part": 4}, "salt": False}
    assert bake.input_schema()["required"] == ["flour", "slice"]


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "field"),
    [
        ({}, "flour"),
        ({"flour": "much"}, "flour"),
        ({"flour": None}, "flour"),
        ({"flour": 1, "sugar": 2}, "sugar"),
        ({"flour": 1, "slice": {"part": 1}}, "slice"),
        ({"flour": 1, "ratio": float("nan")}, "ratio"),
        ({"flour": 1, "ratio": float("inf")}, "ratio"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_by_name(app: Tenuto, kwargs: dict[str, Any], field: str) -> None:
    @app.job
    def bake(flour: int, slice: Slice | None = None, ratio: float = 1.0) -> None: ...

    found = refusal(bake, **kwargs).field
    assert found is not None
    assert found.split(".")[0] == field


def test_a_part_of_an_argument_is_named_by_its_path(app: Tenuto) -> None:
    @app.job
    def bake(order: Order) -> None: ...

    assert refusal(bake, order={"id": str(UUID(int=1)), "lines": ["a", 5]}).field == "order.lines.1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "17",
        "{",
        '{"flour": 1} trailing',
        '{"flour": NaN}',
        '{"flour": 1e999}',
        '{"flour": ' + "1" * 5000 + "}",
        '{"flour": ' + "[" * 100_000,
        '{"flour": "\\ud800"}',
        '{"__class__": "os.system", "flour": 1}',
        '{"py/object": "os.system", "flour": 1}',
    ],
)
def test_json_that_is_no_input_is_refused(app: Tenuto, text: str) -> None:
    @app.job
    def bake(flour: int) -> None: ...

    with pytest.raises(Invalid):
        bake.check_input(text)


@pytest.mark.parametrize(
    "value",
    [
        "a\x00b",
        "\ud800",
        {"deep": "a\x00"},
        "x" * (MAX_INPUT + 1),
        "ä" * (MAX_INPUT // 2 + 1),
        10**5000,
        object(),
        b"\xff",
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_stored_is_refused_in_our_words_even_where_anything_goes(app: Tenuto, value: Any) -> None:
    @app.job
    def bake(anything: Any) -> None: ...

    with pytest.raises(Invalid):
        bake.dump_input((value,), {})


@pytest.mark.parametrize("depth", [210, 300, 100_000])
def test_what_is_nested_too_deeply_to_be_read_again_is_refused(app: Tenuto, depth: int) -> None:
    @app.job
    def bake(anything: Any) -> None: ...

    deep: Any = []
    for _ in range(depth):
        deep = [deep]
    with pytest.raises(Invalid):
        bake.dump_input((deep,), {})


def test_what_looks_like_an_object_stays_data(app: Tenuto) -> None:
    @app.job
    def bake(anything: Any) -> None: ...

    given = {"__class__": "os.system", "py/object": "x", "yaml": "!!python/object:os.system", "pickle": "gASVCg=="}
    assert trip(bake, given) == {"anything": given}


# --- what can be no job --------------------------------------------------------------------------------------------


def test_a_signature_without_names_is_refused_when_it_is_defined(app: Tenuto) -> None:
    def starred(*args: int) -> None: ...
    def double_starred(**kwargs: int) -> None: ...
    def nameless(flour: int, /) -> None: ...

    for function, field in ((starred, "args"), (double_starred, "kwargs"), (nameless, "flour")):
        with pytest.raises(Invalid, match="cannot take") as refused:
            app.job(function)
        assert refused.value.field == field


def test_a_parameter_that_is_no_json_is_refused_when_it_is_defined(app: Tenuto) -> None:
    class Oven:
        pass

    def bake(oven: Oven) -> None: ...

    bake.__annotations__["oven"] = Oven
    with pytest.raises(Invalid, match="cannot be stored as JSON"):
        app.job(bake)


def test_a_generator_is_no_job_as_to_call_it_runs_nothing_of_it(app: Tenuto) -> None:
    def bake() -> Iterator[int]:
        yield 1

    async def serve() -> AsyncIterator[int]:
        yield 1

    for function in (bake, serve):
        with pytest.raises(Invalid, match=r"is a generator.*take the yield out of it"):
            app.job(function)
    assert app.jobs.by_name == {}


def test_an_isolated_job_must_stand_at_the_top_of_a_module(app: Tenuto) -> None:
    def bake() -> None: ...

    with pytest.raises(Invalid, match="define it at the top of a module") as refused:
        app.job(isolated=True)(bake)
    assert refused.value.field == "isolated"


def test_two_jobs_of_one_name_are_refused(app: Tenuto) -> None:
    @app.job
    def bake() -> None: ...

    with pytest.raises(Invalid, match="bake is registered already"):
        app.job(name="bake")(lambda: None)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"queue": ""}, "queue"),
        ({"queue": "a b"}, "queue"),
        ({"priority": 1001}, "priority"),
        ({"max_retries": -1}, "max_retries"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"limit": 0}, "limit"),
        ({"limit_key": "gas"}, "limit"),
        ({"on_lost": "ignore"}, "on_lost"),
        ({"tags": [str(n) for n in range(10_000)]}, "tags"),
    ],
)
def test_options_that_cannot_be_are_refused_when_the_job_is_defined(
    app: Tenuto, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        app.job(**{"name": "bake", **options})(lambda: None)
    assert refused.value.field is not None
    assert field in refused.value.field
    assert app.jobs.by_name == {}


def test_an_unknown_job_is_told_with_what_is_known(app: Tenuto) -> None:
    @app.job
    def bake() -> None: ...

    with pytest.raises(UnknownJob, match=r"'wash'.*known: bake"):
        app.jobs.get("wash")


# --- as a value ----------------------------------------------------------------------------------------------------


async def test_calling_a_job_runs_the_function_here_and_now(app: Tenuto) -> None:
    @app.job
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    @app.job
    async def triple(n: int) -> int:
        return 3 * n

    assert double(4) == 8
    assert await triple(4) == 12
    assert (double.__name__, double.__doc__, repr(double)) == ("double", "Twice as much.", "<job double>")


def test_using_gives_other_options_and_leaves_the_job_as_it_was(app: Tenuto) -> None:
    @app.job(queue="oven", tags=["a"])
    def bake() -> None: ...

    other = bake.using(priority=9, tags=["b", "c"], key="k", delay=timedelta(hours=1))
    assert (other.using_.queue, other.using_.priority, other.using_.tags, other.using_.key) == (
        "oven",
        9,
        ("b", "c"),
        "k",
    )
    assert (bake.using_.priority, bake.using_.tags, bake.using_.key) == (0, ("a",), None)
    assert other.name == bake.name
    assert app.jobs.by_name == {"bake": bake}


def test_an_option_that_is_not_there_is_refused_with_those_that_are(app: Tenuto) -> None:
    @app.job
    def bake() -> None: ...

    with pytest.raises(Invalid, match=r"'prio'.*priority"):
        bake.using(prio=9)


def test_the_rules_of_a_job_go_along_with_its_tasks(app: Tenuto) -> None:
    @app.job(max_retries=5, timeout="1h", on_lost="fail")
    def bake() -> None: ...

    @app.job(retry=RetryPolicy(max_retries=2, base_seconds=1))
    def wash() -> None: ...

    assert bake.policy == Policy(RetryPolicy(max_retries=5), 3600.0, "fail")
    assert wash.policy.retry == RetryPolicy(max_retries=2, base_seconds=1)


def test_a_number_of_retries_beside_a_whole_policy_is_refused(app: Tenuto) -> None:
    with pytest.raises(Invalid, match=r"retry=RetryPolicy\(max_retries=3") as refusal:
        app.job(max_retries=3, retry=RetryPolicy(max_retries=8))
    assert refusal.value.field == "max_retries"


def test_a_limit_without_a_key_is_the_jobs_own(app: Tenuto) -> None:
    @app.job(limit=3)
    def bake() -> None: ...

    @app.job(limit=2, limit_key="gas")
    def roast() -> None: ...

    assert (bake.using_.limit_key, bake.using_.limit) == ("job:bake", 3)
    assert (roast.using_.limit_key, roast.using_.limit) == ("gas", 2)


# --- results -------------------------------------------------------------------------------------------------------


def test_a_result_is_stored_as_its_type_says(app: Tenuto) -> None:
    @app.job
    def order() -> Order:
        return Order(id=UUID(int=1))

    @app.job
    def anything():  # type: ignore[no-untyped-def]
        ...

    assert json.loads(order.dump_output(order()) or "")["id"] == str(UUID(int=1))
    assert anything.dump_output(None) is None
    assert json.loads(anything.dump_output({"when": datetime(2031, 1, 1, tzinfo=UTC)}) or "") == {
        "when": "2031-01-01T00:00:00Z"
    }
