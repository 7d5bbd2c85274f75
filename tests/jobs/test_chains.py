"""Chains (J10), when they are made: which value goes where is decided by types, and what cannot work is refused there.

And called like any function, which needs no worker: what flows through is what a worker would see.
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

from tenuto import Context, PermanentFailure, Tenuto, TenutoError, stop
from tenuto.errors import Invalid
from tenuto.jobs import chain_wiring
from tenuto.jobs.chains import Chain
from tests.jobs.conftest import Bench
from tests.support import isolated_jobs

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


def refused(*steps: Step) -> Invalid:
    with pytest.raises(Invalid) as refusal:
        Chain("chain", steps)
    return refusal.value


def run(*steps: Step) -> Step:
    return Chain("chain", steps).as_function()


# --- what flows where -----------------------------------------------------------------------------------------------


async def test_each_step_takes_by_type_what_the_input_and_earlier_steps_give() -> None:
    assert await run(order, invoice, receipt)(7) == "7: 700"
    assert await run(order, invoice, receipt)(number=7) == "7: 700"


async def test_of_two_values_of_one_type_the_newest_counts() -> None:
    def more(order: Order) -> Order:
        return Order(order.number + 1)

    assert await run(order, more, more, invoice)(1) == Invoice(300)


async def test_a_step_without_a_result_passes_nothing_on_and_hides_nothing() -> None:
    seen = []

    def look(order: Order) -> None:
        seen.append(order)

    def maybe(found: Order | None) -> int:
        return -1 if found is None else found.number

    assert await run(order, look, maybe)(3) == 3
    assert seen == [Order(3)]


async def test_a_subclass_stands_for_its_parent_and_not_the_other_way_round() -> None:
    def rush(number: int) -> Rush:
        return Rush(number, "ten")

    def needs_rush(rush: Rush) -> str:
        return rush.by

    assert await run(rush, invoice)(2) == Invoice(200)
    assert "needs a value of type Rush" in refused(order, needs_rush).message


async def test_the_members_of_a_tuple_are_there_one_by_one_and_together() -> None:
    def both(number: int) -> tuple[Order, Invoice]:
        return Order(number), Invoice(5)

    def one(invoice: Invoice, order: Order) -> list[int]:
        return [invoice.cents, order.number]

    def together(both: tuple[Order, Invoice], numbers: list[int]) -> int:
        return len(both) + sum(numbers)

    assert await run(both, one, together)(4) == 2 + 9


async def test_inputs_of_one_type_are_told_apart_by_their_names() -> None:
    def copy(source: str, target: str) -> None: ...

    def check(target: str) -> str:
        return target

    def guess(anything: str) -> str:
        return anything

    assert await run(copy, check)("here", "there") == "there"
    assert await run(copy, check)(target="there", source="here") == "there"
    refusal = refused(copy, guess)
    assert (refusal.field, refusal.message) == (
        "anything",
        "step guess: 2 values of type str come alike from the input source and the input target",
    )


def test_members_of_one_type_in_a_tuple_are_not_guessed_between() -> None:
    def pair(number: int) -> tuple[Order, Order]:
        return Order(number), Order(number)

    assert "2 values of type Order come alike from pair" in refused(pair, invoice).message


async def test_an_optional_parameter_keeps_its_default_if_nothing_fits() -> None:
    def with_default(order: Order, rate: float = 1.5, ids: list[int] | None = None) -> float:
        return order.number * rate if ids is None else 0.0

    assert await run(order, with_default)(2) == 3.0


async def test_defaults_of_the_first_step_are_those_of_the_chain() -> None:
    def begin(number: int = 4, name: str = "x") -> Order:
        return Order(number)

    assert await run(begin, invoice)() == Invoice(400)
    assert await run(begin, invoice)(name="y") == Invoice(400)


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
def test_a_value_fits_where_every_value_of_its_type_does(given: Any, wanted: Any) -> None:
    assert chain_wiring.fits(given, wanted)


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
def test_a_value_does_not_fit_where_some_of_its_type_would_not(given: Any, wanted: Any) -> None:
    assert not chain_wiring.fits(given, wanted)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_missing_type_is_named_with_what_there_is() -> None:
    def ship(order: Order, invoice: Invoice | None, address: list[str]) -> None: ...

    refusal = refused(order, ship)

    assert refusal.field == "invoice"
    assert refusal.message == "step ship needs a value of type Invoice | None, and none is there"
    assert refusal.remedy == "by then there is: int (the input number), Order (order)"

    def nothing() -> None: ...

    assert refused(nothing, ship).remedy == "by then there is: nothing"


def test_what_may_be_none_is_not_what_is_asked_for() -> None:
    def perhaps(number: int) -> Order | None:
        return None

    assert "Order | None (perhaps)" in str(refused(perhaps, invoice).remedy)


def test_a_step_says_what_it_takes_and_what_it_returns() -> None:
    def untyped(number) -> int:  # type: ignore[no-untyped-def]
        return 1

    def silent(number: int):  # type: ignore[no-untyped-def]
        return 1

    def greedy(*numbers: int) -> int:
        return 1

    assert "untyped: the parameter has no type" in refused(untyped).message
    assert "silent does not say what it returns" in refused(silent).message
    assert "greedy cannot take *numbers" in refused(greedy).message


def test_only_functions_are_steps() -> None:
    def stream(number: int) -> Iterator[int]:
        yield number

    assert "is not a function" in refused(functools.partial(order, number=1)).message
    assert "is not a function" in refused(int).message
    assert "stream is a generator" in refused(stream).message
    assert "1 to 100 steps" in refused().message
    assert "1 to 100 steps" in refused(*[order] * 101).message


def test_types_nobody_can_read_or_store_are_refused() -> None:
    @dataclass
    class Hidden:
        number: int

    def gives_hidden(number: int) -> Hidden:
        return Hidden(number)

    def gives_unstorable(number: int) -> Unstorable:
        return Unstorable()

    assert "its types cannot be read: name 'Hidden' is not defined" in refused(gives_hidden).message
    assert "returns Unstorable, which cannot be stored as JSON" in refused(gives_unstorable).message


def test_a_chain_cannot_be_isolated_and_options_nobody_knows_are_refused(bench: Bench) -> None:
    with pytest.raises(Invalid, match="no option 'isolated'"):
        bench.app.chain("chain", order, isolated=True)  # type: ignore[call-arg]
    with pytest.raises(Invalid, match="no option 'max_retry'"):
        bench.app.chain("chain", order, max_retry=2)  # type: ignore[call-arg]

    with pytest.raises(Invalid, match="hang is isolated"):
        bench.app.chain("chain", isolated_jobs.hang)


# --- as a job -------------------------------------------------------------------------------------------------------


async def test_a_chain_is_a_job_with_the_input_of_its_first_step(bench: Bench) -> None:
    job = bench.app.chain("bill", order, invoice, receipt, max_retries=2, queue="money")

    assert (job.name, job.parameters, job.required) == ("bill", {"number": int}, {"number"})
    assert (job.policy.retry.max_retries, job.using_.queue, job.__doc__) == (2, "money", "order → invoice → receipt")
    assert job.dump_input((7,), {}) == '{"number":7}'
    assert await job(7) == "7: 700"
    with pytest.raises(Invalid):
        job.check_input('{"number": "many"}')


async def test_a_job_can_be_a_step_and_a_function_may_be_there_twice(bench: Bench) -> None:
    @bench.app.job(max_retries=9)
    def double(number: int) -> int:
        return number * 2

    job = bench.app.chain("four", double, double, max_retries=1)

    assert await job(3) == 12
    assert job.__doc__ == "double (1) → double (2)"
    assert job.policy.retry.max_retries == 1


async def test_what_flows_is_what_could_be_stored_so_a_test_sees_what_a_worker_sees() -> None:
    def strict(number: int) -> Strict:
        return Strict.model_validate({"at": datetime(2031, 1, number, tzinfo=UTC), "from": "Ana"})

    def many(strict: Strict) -> dict[int, tuple[Colour, datetime]]:
        return {strict.year: (Colour.RED, strict.at)}

    def look(many: dict[int, tuple[Colour, datetime]]) -> bool:
        return many == {2031: (Colour.RED, datetime(2031, 1, 5, tzinfo=UTC))}

    assert await run(strict, many, look)(5) is True


async def test_stop_ends_the_chain_with_its_value() -> None:
    after = []

    def enough(order: Order) -> Invoice:
        return stop({"because": "enough"}) if order.number > 9 else Invoice(1)

    async def later(invoice: Invoice) -> int:
        after.append(invoice)
        return 1

    chain = run(order, enough, later)
    assert await chain(10) == {"because": "enough"}
    assert after == []
    assert await chain(1) == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "returned (NoneType) does not fit Order"),
        (Order("x"), "cannot be stored as JSON"),  # type: ignore[arg-type]
        ("text", "returned (str) does not fit Order"),
    ],
    ids=str,
)
async def test_a_step_that_returns_something_else_than_it_says_fails_for_good(value: Any, why: str) -> None:
    def wrong() -> Order:
        return value  # type: ignore[no-any-return]

    with pytest.raises(PermanentFailure) as failure:
        await run(wrong)()
    assert why in failure.value.message
    assert "step wrong" in failure.value.message


async def test_what_is_too_large_or_cannot_be_written_is_refused_clearly() -> None:
    def large() -> str:
        return "x" * 1_100_000

    def not_a_number() -> float:
        return float("nan")

    def stops() -> str:
        return stop(Unstorable())  # type: ignore[no-any-return]

    async def why(step: Step) -> str:
        with pytest.raises(PermanentFailure) as failure:
            await run(step)()
        return failure.value.message

    assert await why(large) == (
        "what step large returned (str) cannot be stored: it is larger than 1048576 bytes; "
        "store the data elsewhere and pass a reference to it"
    )
    assert "not_a_number returned (float) does not fit float" in await why(not_a_number)
    assert "cannot be stored as JSON" in await why(stops)


async def test_a_step_that_takes_a_context_needs_a_worker() -> None:
    def with_context(number: int, ctx: Context) -> int:
        return number

    with pytest.raises(TenutoError, match="step with_context takes a Context"):
        await run(with_context)(1)


def test_a_chain_says_what_it_would_run_before_any_database_is_near(tmp_path: Any) -> None:
    app = Tenuto("postgresql://nobody@nowhere.invalid/none", home=tmp_path)

    app.chain("bill", order, invoice)
    with pytest.raises(Invalid, match="step receipt needs a value of type Invoice"):
        app.chain("wrong", order, receipt)
    assert "wrong" not in app.jobs.by_name
