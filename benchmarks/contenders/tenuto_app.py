"""An app for `tenuto up`, to measure its idle cost."""

from __future__ import annotations

from tenuto import Tenuto

app = Tenuto()


@app.job
async def noop() -> None:
    """Do nothing."""
