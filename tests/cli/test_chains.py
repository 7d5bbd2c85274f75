"""`tenuto task show` of a chain."""

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
"""


def test_task_show_lists_the_completed_steps_of_a_chain(shell: Shell) -> None:
    (shell.folder / "chains.py").write_text(CHAINS)
    shell.environment["TENUTO_APP"] = "chains:app"
    worker = shell.start_service("worker")
    worker.wait_for_line("worker started")
    task_id = shell("run", "replicate", "--input", '{"table": "users"}', "-q").out.strip()
    worker.wait_for_line("loading")
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
