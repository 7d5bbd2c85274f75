"""Jobs and their typed input (J9): arguments are validated against the signature; errors name the field."""

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
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.validation import MAX_INPUT_BYTES
from tests.support.errors import raises_code


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
    """Create an app; defining jobs needs no database."""
    return Tenuto("postgresql://nobody@nowhere.invalid/none", home=tmp_path)


def round_trip(job: Job[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return arguments after a round trip through the stored JSON."""
    return job.load_input(job.dump_input(args, kwargs))


def input_error(job: Job[..., Any], *args: Any, **kwargs: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        job.dump_input(args, kwargs)
    return caught.value


# --- valid input -----------------------------------------------------------------------------------------------------


def test_job_takes_arguments_by_position_and_by_name(app: Tenuto) -> None:
    @app.job
    def bake(flour: int, water: float, name: str, fast: bool) -> None: ...

    wanted = {"flour": 1, "water": 0.5, "name": "rye", "fast": True}
    assert round_trip(bake, 1, 0.5, "rye", True) == round_trip(bake, 1, 0.5, name="rye", fast=True) == wanted
    assert round_trip(bake, **wanted) == wanted


def test_job_input_contains_the_defaults(app: Tenuto) -> None:
    @app.job
    def bake(flour: int, water: int = 7, *, salt: int | None = None) -> None: ...

    assert json.loads(bake.dump_input((1,), {})) == {"flour": 1, "water": 7, "salt": None}


def test_keyword_only_arguments_are_not_taken_by_position(app: Tenuto) -> None:
    @app.job
    def bake(*, flour: int) -> None: ...

    assert round_trip(bake, flour=3) == {"flour": 3}
    assert input_error(bake, 3).code == "job.input.too_many_arguments"


def test_job_input_keeps_dataclasses_models_and_other_types(app: Tenuto) -> None:
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
    assert round_trip(bake, **given) == given


def test_context_parameter_is_not_part_of_the_input(app: Tenuto) -> None:
    @app.job
    def first(ctx: Context, flour: int) -> None: ...

    @app.job
    def last(flour: int, *, context: Context) -> None: ...

    assert (first.context_parameter, last.context_parameter) == ("ctx", "context")
    assert round_trip(first, 3) == round_trip(last, 3) == {"flour": 3}
    assert input_error(first, flour=1, ctx=2).field == "ctx"


def test_job_without_parameters_takes_no_arguments(app: Tenuto) -> None:
    @app.job
    def bake() -> None: ...

    assert round_trip(bake) == {}
    assert input_error(bake, flour=1).field == "flour"
    assert input_error(bake, 1).code == "job.input.too_many_arguments"


def test_argument_given_by_position_and_by_name_is_rejected(app: Tenuto) -> None:
    @app.job
    def bake(flour: int) -> None: ...

    error = input_error(bake, 1, flour=2)
    assert (error.code, error.field) == ("job.input.duplicate_argument", "flour")


def test_parameter_names_may_equal_attributes_of_pydantic_models(app: Tenuto) -> None:
    @app.job
    def bake(model_config: int, schema: int, json: int, self: int, copy: int = 1, _private: int = 2) -> None: ...

    given = {"model_config": 1, "schema": 2, "json": 3, "self": 4, "copy": 5, "_private": 6}
    assert round_trip(bake, **given) == given


def test_validate_input_normalizes_json(app: Tenuto) -> None:
    @app.job
    def bake(flour: int, slice: Slice, salt: bool = False) -> None: ...

    text = bake.validate_input('{"slice": {"table": "t", "part": "4"}, "flour": 1, "flour": 2}')
    assert json.loads(text) == {"flour": 2, "slice": {"table": "t", "part": 4}, "salt": False}
    assert bake.input_schema()["required"] == ["flour", "slice"]


# --- invalid input ---------------------------------------------------------------------------------------------------


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
def test_invalid_argument_is_rejected_with_its_field(app: Tenuto, kwargs: dict[str, Any], field: str) -> None:
    @app.job
    def bake(flour: int, slice: Slice | None = None, ratio: float = 1.0) -> None: ...

    error = input_error(bake, **kwargs)
    assert error.code == "job.input.invalid"
    assert error.field is not None
    assert error.field.split(".")[0] == field


def test_invalid_part_of_an_argument_is_rejected_with_its_path(app: Tenuto) -> None:
    @app.job
    def bake(order: Order) -> None: ...

    assert input_error(bake, order={"id": str(UUID(int=1)), "lines": ["a", 5]}).field == "order.lines.1"


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
def test_validate_input_rejects_invalid_json(app: Tenuto, text: str) -> None:
    @app.job
    def bake(flour: int) -> None: ...

    with pytest.raises(Invalid):
        bake.validate_input(text)


@pytest.mark.parametrize(
    "value",
    [
        "a\x00b",
        "\ud800",
        {"deep": "a\x00"},
        "x" * (MAX_INPUT_BYTES + 1),
        "ä" * (MAX_INPUT_BYTES // 2 + 1),
        10**5000,
        object(),
        b"\xff",
    ],
    ids=lambda value: type(value).__name__,
)
def test_unstorable_argument_of_type_any_is_rejected(app: Tenuto, value: Any) -> None:
    @app.job
    def bake(anything: Any) -> None: ...

    with pytest.raises(Invalid):
        bake.dump_input((value,), {})


@pytest.mark.parametrize("depth", [210, 300, 100_000])
def test_deeply_nested_argument_is_rejected(app: Tenuto, depth: int) -> None:
    @app.job
    def bake(anything: Any) -> None: ...

    deep: Any = []
    for _ in range(depth):
        deep = [deep]
    with pytest.raises(Invalid):
        bake.dump_input((deep,), {})


def test_input_with_class_names_stays_data(app: Tenuto) -> None:
    @app.job
    def bake(anything: Any) -> None: ...

    given = {"__class__": "os.system", "py/object": "x", "yaml": "!!python/object:os.system", "pickle": "gASVCg=="}
    assert round_trip(bake, given) == {"anything": given}


# --- rejected functions ----------------------------------------------------------------------------------------------


def test_job_with_parameters_without_keyword_is_rejected(app: Tenuto) -> None:
    def starred(*args: int) -> None: ...
    def double_starred(**kwargs: int) -> None: ...
    def nameless(flour: int, /) -> None: ...

    for function, field in ((starred, "args"), (double_starred, "kwargs"), (nameless, "flour")):
        with raises_code("job.parameter.unsupported") as caught:
            app.job(function)
        assert caught.value.field == field


def test_job_with_parameter_that_is_not_json_is_rejected(app: Tenuto) -> None:
    class Oven:
        pass

    def bake(oven: Oven) -> None: ...

    bake.__annotations__["oven"] = Oven
    with raises_code("job.parameter.not_json"):
        app.job(bake)


def test_generator_function_is_rejected_as_job(app: Tenuto) -> None:
    def bake() -> Iterator[int]:
        yield 1

    async def serve() -> AsyncIterator[int]:
        yield 1

    for function in (bake, serve):
        with raises_code("job.function.generator"):
            app.job(function)
    assert app.jobs.jobs_by_name == {}


def test_isolated_job_inside_a_function_is_rejected(app: Tenuto) -> None:
    def bake() -> None: ...

    with raises_code("job.isolated.local_function") as caught:
        app.job(isolated=True)(bake)
    assert caught.value.field == "isolated"


def test_job_name_must_be_unique(app: Tenuto) -> None:
    @app.job
    def bake() -> None: ...

    with raises_code("job.name.duplicate"):
        app.job(name="bake")(lambda: None)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"queue": ""}, "queue"),
        ({"queue": "a b"}, "queue"),
        ({"priority": 1001}, "priority"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"limit": 0}, "limit"),
        ({"limit_key": "gas"}, "limit"),
        ({"on_lost": "ignore"}, "on_lost"),
        ({"tags": [str(n) for n in range(10_000)]}, "tags"),
    ],
)
def test_invalid_job_options_are_rejected(app: Tenuto, options: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        app.job(**{"name": "bake", **options})(lambda: None)
    assert caught.value.field is not None
    assert field in caught.value.field
    assert app.jobs.jobs_by_name == {}


def test_registry_lists_known_jobs_for_an_unknown_one(app: Tenuto) -> None:
    @app.job
    def bake() -> None: ...

    with raises_code("job.unknown", UnknownJob) as caught:
        app.jobs.get_job("wash")
    assert "'wash'" in caught.value.message
    assert "bake" in caught.value.message


# --- jobs as values --------------------------------------------------------------------------------------------------


async def test_job_call_runs_the_function(app: Tenuto) -> None:
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


def test_using_returns_a_job_with_other_options(app: Tenuto) -> None:
    @app.job(queue="oven", tags=["a"])
    def bake() -> None: ...

    other = bake.using(priority=9, tags=["b", "c"], unique_key="k", delay=timedelta(hours=1))
    assert (other.options.queue, other.options.priority, other.options.tags, other.options.unique_key) == (
        "oven",
        9,
        ("b", "c"),
        "k",
    )
    assert (bake.options.priority, bake.options.tags, bake.options.unique_key) == (0, ("a",), None)
    assert other.name == bake.name
    assert app.jobs.jobs_by_name == {"bake": bake}


def test_using_rejects_unknown_options(app: Tenuto) -> None:
    @app.job
    def bake() -> None: ...

    with raises_code("job.option.unknown") as caught:
        bake.using(prio=9)  # type: ignore[call-arg]
    assert "priority" in (caught.value.remedy or "")


def test_job_options_set_its_policy(app: Tenuto) -> None:
    @app.job(max_attempts=5, timeout="1h", on_lost="fail")
    def bake() -> None: ...

    @app.job(retry=RetryPolicy(max_attempts=2, base_seconds=1))
    def wash() -> None: ...

    assert bake.policy == TaskPolicy(RetryPolicy(max_attempts=5), 3600.0, "fail")
    assert wash.policy.retry == RetryPolicy(max_attempts=2, base_seconds=1)


def test_job_with_max_attempts_and_retry_policy_is_rejected(app: Tenuto) -> None:
    with pytest.raises(Invalid, match=r"retry=RetryPolicy\(max_attempts=3") as caught:
        app.job(max_attempts=3, retry=RetryPolicy(max_attempts=8))
    assert caught.value.field == "max_attempts"


def test_manifest_accepts_max_retries_as_another_name_for_max_attempts(app: Tenuto) -> None:
    @app.job(max_attempts=7)
    def bake() -> None: ...

    assert app.manifest("three", bake, max_retries=3).policy.retry.max_attempts == 3
    assert app.manifest("none", bake, max_retries=0).policy.retry.max_attempts == 1
    assert app.manifest("same", bake).policy.retry.max_attempts == 7
    for other in ({"max_attempts": 3}, {"retry": RetryPolicy()}):
        with raises_code("retry.max_attempts.conflict"):
            app.manifest("both", bake, max_retries=3, **other)


def test_job_limit_without_key_gets_a_key_of_the_job(app: Tenuto) -> None:
    @app.job(limit=3)
    def bake() -> None: ...

    @app.job(limit=2, limit_key="gas")
    def roast() -> None: ...

    assert (bake.options.limit_key, bake.options.limit) == ("job:bake", 3)
    assert (roast.options.limit_key, roast.options.limit) == ("gas", 2)


# --- results ---------------------------------------------------------------------------------------------------------


def test_job_output_is_dumped_by_its_type(app: Tenuto) -> None:
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
