"""A small app for compose.yaml, to be replaced by your own."""

from tenuto import Tenuto

app = Tenuto()


@app.job
async def greet(name: str) -> str:
    return f"Hello, {name}"
