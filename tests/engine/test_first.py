from tenuto import Context, RetryPolicy, Tenuto

async def test_a_job_runs_and_its_result_is_recorded(app: Tenuto) -> None:
    @app.job
    async def double(n: int) -> int:
        return 2 * n

    async with app.worker(slots=5):
        record = await app.wait(await app.enqueue(double, 21), timeout=10)
    assert (record["status"], record["output"]) == ("completed", 42)
