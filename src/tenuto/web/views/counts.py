"""Live counts beside the entries of the sidebar."""

from __future__ import annotations

from tenuto.app import Tenuto
from tenuto.web.navigation import Counts


async def load_counts(app: Tenuto) -> Counts:
    """Return the counts; computed once per second for all viewers."""
    queues = await app.queues()
    workers = await app.workers()
    return Counts(
        tasks=sum(queue.queued_count + queue.scheduled_count + queue.running_count for queue in queues),
        workers=sum(1 for worker in workers if worker.state == "alive" and worker.service == "worker"),
    )
