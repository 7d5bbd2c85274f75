"""Chains (J10): values are passed by type, impossible chains are rejected when they are created.

The tests call chains directly, without a worker; steps get the same values as in a worker.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, Union

import pydantic
import pytest

from tenuto import Context, PermanentFailure, Tenuto, stop
from tenuto.errors import Invalid
from tenuto.jobs.chains import Chain
from tenuto.jobs.workflows.value_types import is_assignable
from tests.jobs.conftest import RunnerHarness
from tests.support import isolated_jobs
from tests.support.errors import raises_code

Step = Callable[..., Any]
UserId = NewType("UserId", int)


@dataclass
class Order:
    number: int


@dataclass
class Rush(Order):
    by: str = "noon"


@dataclass
class Invoice:
    cents: int


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    at: datetime
    who: str = pydantic.Field(alias="from")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def year(self) -> int:
        return self.at.year


class Row(TypedDict):
    id: int


class Colour(StrEnum):
    RED = "red"


class Unstorable:
    pass


def order(number: int) -> Order:
    return Order(number)


def invoice(order: Order) -> Invoice:
    return Invoice(order.number * 100)


async def receipt(invoice: Invoice, number: int) -> str:
    return f"{number}: {invoice.cents}"


def create_error(*steps: Step) -> Invalid:
    with pytest.raises(Invalid) as caught:
        Chain("chain", steps)
    return caught.value


def create_function(*steps: Step) -> Step:
    return Chain("chain", steps).as_function()


# --- passing values --------------------------------------------------------------------------------------------------


async def test_chain_passes_input_and_results_by_type() -> None:
    assert await create_function(order, invoice, receipt)(7) == "7: 700"
    assert await create_function(order, invoice, receipt)(number=7) == "7: 700"


async def test_chain_passes_the_newest_value_of_a_type() -> None:
    def more(order: Order) -> Order:
        return Order(order.number + 1)

    assert await create_function(order, more, more, invoice)(1) == Invoice(300)


async def test_chain_step_that_returns_none_offers_no_value() -> None:
    seen = []

    def look(order: Order) -> None:
        seen.append(order)

    def maybe(found: Order | None) -> int:
        return -1 if found is None else found.number

    assert await create_function(order, look, maybe)(3) == 3
    assert seen == [Order(3)]


async def test_chain_passes_a_subclass_for_its_parent_but_not_the_reverse() -> None:
    def rush(number: int) -> Rush:
        return Rush(number, "ten")

    def needs_rush(rush: Rush) -> str:
        return rush.by

    assert await create_function(rush, invoice)(2) == Invoice(200)
    assert create_error(order, needs_rush).code == "chain.step.parameter.no_source"


async def test_chain_passes_a_tuple_and_its_members() -> None:
    def both(number: int) -> tuple[Order, Invoice]:
        return Order(number), Invoice(5)

    def one(invoice: Invoice, order: Order) -> list[int]:
        return [invoice.cents, order.number]

    def together(both: tuple[Order, Invoice], numbers: list[int]) -> int:
        return len(both) + sum(numbers)

    assert await create_function(both, one, together)(4) == 2 + 9


async def test_chain_distinguishes_inputs_of_one_type_by_name() -> None:
    def copy(source: str, target: str) -> None: ...

    def check(target: str) -> str:
        return target

    def guess(anything: str) -> str:
        return anything

    assert await create_function(copy, check)("here", "there") == "there"
    assert await create_function(copy, check)(target="there", source="here") == "there"
    error = create_error(copy, guess)
    assert (error.code, error.field) == ("chain.step.parameter.ambiguous", "anything")
    assert "the input source and the input target" in error.message


def test_chain_rejects_ambiguous_members_of_a_tuple() -> None:
    def pair(number: int) -> tuple[Order, Order]:
        return Order(number), Order(number)

    assert create_error(pair, invoice).code == "chain.step.parameter.ambiguous"


async def test_chain_step_uses_its_default_if_no_value_fits() -> None:
    def with_default(order: Order, rate: float = 1.5, ids: list[int] | None = None) -> float:
        return order.number * rate if ids is None else 0.0

    assert await create_function(order, with_default)(2) == 3.0


async def test_chain_input_has_the_defaults_of_the_first_step() -> None:
    def begin(number: int = 4, name: str = "x") -> Order:
        return Order(number)

    assert await create_function(begin, invoice)() == Invoice(400)
    assert await create_function(begin, invoice)(name="y") == Invoice(400)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (list[int], list[int]),
        (list[int], list),
        (list[int], Sequence[int]),
        (dict[str, int], Mapping[str, int]),
        (int, int | None),
        (int, Optional[int]),  # noqa: UP045 — as older code writes it
        (int, Union[str, int]),  # noqa: UP007
        (int | str, str | int | None),
        (Rush, Order | None),
        (Rush | None, Order | None),
        (Annotated[int, pydantic.Field(gt=0)], int),
        (int, Annotated[int, pydantic.Field(gt=0)]),
        (UserId, UserId),
        (UserId, int),
        (Row, dict),
        (Colour, str),
        (Literal["a"], Literal["a"]),
        (int, Any),
        (int, object),
    ],
    ids=str,
)
def test_chain_type_is_assignable(given: Any, wanted: Any) -> None:
    assert is_assignable(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (list[int], list[str]),
        (list, list[int]),
        (str, Sequence[str]),
        (int | None, int),
        (int | str, int),
        (int, UserId),
        (int, float),
        (bool, int),
        (Order, Rush),
        (Any, int),
        (dict, Row),
        (Order, Row),
        (Order, Literal["a"]),
        (tuple[int, ...], tuple[int, int]),
    ],
    ids=str,
)
def test_chain_type_is_not_assignable(given: Any, wanted: Any) -> None:
    assert not is_assignable(given, wanted)


# --- rejected chains -------------------------------------------------------------------------------------------------


def test_chain_rejects_a_parameter_without_source_and_lists_available_values() -> None:
    def ship(order: Order, invoice: Invoice | None, address: list[str]) -> None: ...

    error = create_error(order, ship)

    assert (error.code, error.field) == ("chain.step.parameter.no_source", "invoice")
    assert "type Invoice | None" in error.message
    assert error.remedy == "available values: int (the input number), Order (order)"

    def nothing() -> None: ...

    assert create_error(nothing, ship).remedy == "available values: none"


def test_chain_does_not_pass_an_optional_value_as_a_required_one() -> None:
    def perhaps(number: int) -> Order | None:
        return None

    assert "Order | None (perhaps)" in str(create_error(perhaps, invoice).remedy)


def test_chain_rejects_steps_without_types() -> None:
    def untyped(number) -> int:  # type: ignore[no-untyped-def]
        return 1

    def silent(number: int):  # type: ignore[no-untyped-def]
        return 1

    def greedy(*numbers: int) -> int:
        return 1

    assert create_error(untyped).code == "chain.step.parameter.untyped"
    assert create_error(silent).code == "chain.step.return.untyped"
    assert create_error(greedy).code == "chain.step.parameter.unsupported"


def test_chain_rejects_steps_that_are_not_functions() -> None:
    def stream(number: int) -> Iterator[int]:
        yield number

    assert create_error(functools.partial(order, number=1)).code == "chain.step.not_a_function"
    assert create_error(int).code == "chain.step.not_a_function"
    assert create_error(stream).code == "chain.step.generator"
    assert create_error().code == "chain.steps.count"
    assert create_error(*[order] * 101).code == "chain.steps.count"


def test_chain_rejects_types_that_cannot_be_resolved_or_stored() -> None:
    @dataclass
    class Hidden:
        number: int

    def gives_hidden(number: int) -> Hidden:
        return Hidden(number)

    def gives_unstorable(number: int) -> Unstorable:
        return Unstorable()

    assert create_error(gives_hidden).code == "chain.step.types.unresolvable"
    assert create_error(gives_unstorable).code == "chain.step.return.not_json"


def test_chain_rejects_isolation_and_unknown_options(harness: RunnerHarness) -> None:
    with raises_code("chain.option.unknown"):
        harness.app.chain("chain", order, isolated=True)  # type: ignore[call-arg]
    with raises_code("chain.option.unknown"):
        harness.app.chain("chain", order, max_retry=2)  # type: ignore[call-arg]

    with raises_code("chain.step.isolated"):
        harness.app.chain("chain", isolated_jobs.hang)


# --- as a job --------------------------------------------------------------------------------------------------------


async def test_chain_is_a_job_with_the_input_of_its_first_step(harness: RunnerHarness) -> None:
    job = harness.app.chain("bill", order, invoice, receipt, max_attempts=2, queue="money")

    assert (job.name, job.parameters, job.required_parameters) == ("bill", {"number": int}, {"number"})
    assert (job.policy.retry.max_attempts, job.options.queue, job.__doc__) == (2, "money", "order → invoice → receipt")
    assert job.dump_input((7,), {}) == '{"number":7}'
    assert await job(7) == "7: 700"
    with raises_code("job.input.invalid"):
        job.validate_input('{"number": "many"}')


async def test_chain_accepts_jobs_and_repeated_functions_as_steps(harness: RunnerHarness) -> None:
    @harness.app.job(max_attempts=9)
    def double(number: int) -> int:
        return number * 2

    job = harness.app.chain("four", double, double, max_attempts=1)

    assert await job(3) == 12
    assert job.__doc__ == "double (1) → double (2)"
    assert job.policy.retry.max_attempts == 1


async def test_chain_called_directly_passes_values_as_they_would_be_stored() -> None:
    def strict(number: int) -> Strict:
        return Strict.model_validate({"at": datetime(2031, 1, number, tzinfo=UTC), "from": "Ana"})

    def many(strict: Strict) -> dict[int, tuple[Colour, datetime]]:
        return {strict.year: (Colour.RED, strict.at)}

    def look(many: dict[int, tuple[Colour, datetime]]) -> bool:
        return many == {2031: (Colour.RED, datetime(2031, 1, 5, tzinfo=UTC))}

    assert await create_function(strict, many, look)(5) is True


async def test_chain_ends_with_the_value_of_stop() -> None:
    after = []

    def enough(order: Order) -> Invoice:
        return stop({"because": "enough"}) if order.number > 9 else Invoice(1)

    async def later(invoice: Invoice) -> int:
        after.append(invoice)
        return 1

    chain = create_function(order, enough, later)
    assert await chain(10) == {"because": "enough"}
    assert after == []
    assert await chain(1) == 1


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "(NoneType) does not fit Order"),
        (Order("x"), "cannot be stored as JSON"),  # type: ignore[arg-type]
        ("text", "(str) does not fit Order"),
    ],
    ids=str,
)
async def test_chain_step_with_result_of_wrong_type_fails_permanently(value: Any, problem: str) -> None:
    def wrong() -> Order:
        return value  # type: ignore[no-any-return]

    with raises_code("chain.step.result.invalid", PermanentFailure) as caught:
        await create_function(wrong)()
    assert problem in caught.value.message
    assert "step wrong" in caught.value.message


async def test_chain_step_with_unstorable_result_fails_permanently() -> None:
    def large() -> str:
        return "x" * 1_100_000

    def not_a_number() -> float:
        return float("nan")

    def stops() -> str:
        return stop(Unstorable())  # type: ignore[no-any-return]

    def one_way() -> Annotated[int, pydantic.PlainSerializer(lambda number: f"number {number}")]:
        return 7  # is written as a text, which is no integer when it is read back

    async def run_error(step: Step) -> str:
        with raises_code("chain.step.result.invalid", PermanentFailure) as caught:
            await create_function(step)()
        return caught.value.message

    assert "step one_way" in await run_error(one_way)
    assert "step large (str) cannot be stored" in await run_error(large)
    assert "step not_a_number (float) cannot be stored: output is NaN or infinite" in await run_error(not_a_number)
    assert "cannot be stored as JSON" in await run_error(stops)


async def test_chain_step_with_context_needs_a_worker() -> None:
    def with_context(number: int, ctx: Context) -> int:
        return number

    with raises_code("chain.step.context_missing"):
        await create_function(with_context)(1)


def test_chain_is_checked_without_a_database(tmp_path: Any) -> None:
    app = Tenuto("postgresql://nobody@nowhere.invalid/none", home=tmp_path)

    app.chain("bill", order, invoice)
    with raises_code("chain.step.parameter.no_source"):
        app.chain("wrong", order, receipt)
    assert "wrong" not in app.jobs.jobs_by_name
