"""Mistakes that type checkers must reject: the lines that end with a marker. Checked by mypy and pyright, never run."""

from __future__ import annotations

from tenuto import Context, Tenuto, injected

app = Tenuto()


@app.job
def double(n: int) -> int:
    return 2 * n


@app.job(queue="mail")
async def send(to: str, subject: str = "") -> None: ...


@app.job
async def with_context(ctx: Context, n: int, *, fast: bool = False) -> str:
    return str(n)


@app.job
async def with_later_context(n: int, ctx: Context = injected, *, fast: bool = False) -> str:
    return str(n)


async def mistakes(ctx: Context) -> None:
    await double.enqueue("three")  # rejected
    await double.enqueue()  # rejected
    await double.enqueue(1, 2)  # rejected
    await double.enqueue(nope=1)  # rejected
    await send.enqueue("a", subjct="b")  # rejected
    await send.using(queue="x").enqueue(3)  # rejected
    await with_context.enqueue("x")  # rejected
    await with_context.enqueue(ctx, 1)  # rejected
    await with_context.enqueue(1, slow=True)  # rejected
    await with_later_context.enqueue("x")  # rejected
    await with_later_context.enqueue()  # rejected
    await with_later_context.enqueue(1, slow=True)  # rejected
    double.using(prio=3)  # rejected
    double.using(priority="high")  # rejected
    double.using(key="a")  # rejected
    number: str = (await app.wait(await double.enqueue(1))).output  # rejected
    text: int = (await app.wait(await with_context.enqueue(1))).output  # rejected
    print(number, text)
    await app.wait("abc")  # rejected
    await app.enqueue("double", 1)  # rejected
    double("three")  # rejected
    await with_context(1)  # rejected
