"""An app for `tenuto up`, to see what it costs with nothing to do."""

from __future__ import annotations

from tenuto import Tenuto

app = Tenuto()


@app.job
async def noop() -> None:
    """Nothing."""
