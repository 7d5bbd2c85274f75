"""`tenuto task show` of a chain and of a workflow."""

from __future__ import annotations

from tests.cli.conftest import Shell

CHAINS = """
from tenuto import Context, Tenuto

app = Tenuto()


async def extract(table: str) -> list[int]:
    return [1, 2, 3]


async def load(rows: list[int], ctx: Context) -> int:
    ctx.log.info("loading")
    await ctx.sleep("30d")
    return len(rows)


replicate = app.chain("replicate", extract, load)


@app.job(queue="elsewhere")
async def deliver() -> None: ...


@app.workflow
async def ship(ctx: Context) -> None:
    for _ in range(2):
        await ctx.step(extract, "lines")
    ctx.log.info("delivering")
    await ctx.gather(ctx.step(extract, "addresses"), ctx.run(deliver))
"""


def test_task_show_lists_the_stored_steps_of_chains_and_workflows(shell: Shell) -> None:
    (shell.folder / "chains.py").write_text(CHAINS)
    shell.environment["TENUTO_APP"] = "chains:app"
    worker = shell.start_service("worker")
    worker.wait_for_line("worker started")
    task_id = shell("run", "replicate", "--input", '{"table": "users"}', "-q").out.strip()
    worker.wait_for_line("loading")
    workflow_id = shell("run", "ship", "-q").out.strip()
    worker.wait_for_line("delivering")
    assert worker.stop() == 0

    shown = shell("task", "show", task_id)
    assert shown.code == 0
    assert "1 extract" in shown.out
    assert "[1, 2, 3]" in shown.out
    assert "sleep in 2 load" in shown.out
    assert "in 30 d" in shown.out or "in 29 d" in shown.out
    steps = shell("task", "show", task_id, "-o", "json").json["steps"]
    assert [(step["name"], step["output"], step["stopped"]) for step in steps] == [
        ("1 extract", [1, 2, 3], False),
        ("sleep in 2 load", None, False),
    ]
    report = shell("task", "show", workflow_id).out
    for text in ("1 extract (1)", "2 extract (2)", "└ 3.1.1 extract", "└ 3.2.1 ctx.run(deliver)", "waits for task"):
        assert text in report
    assert "it waits for its child task" in shell("task", "why", workflow_id).out
