"""``tenuto search`` and ``tenuto history``: find objects, and list the changes of one object."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from tenuto.cli.command import Session, command
from tenuto.cli.lists import PAGE, build_filters, print_page
from tenuto.cli.parameters import argument
from tenuto.model.access.actors import Role
from tenuto.operations.extension_search import search_everywhere
from tenuto.presentation.work_views import HISTORY, SEARCH_HITS


@command(None, "search", "019a8b3c", "nightly -o json", is_list=True)
async def search_objects(
    session: Session, text: Annotated[str, argument("TEXT", "Beginning of an id, or a part of a name.")]
) -> None:
    """Find objects by the beginning of their id, or by a part of their name.

    Objects of every kind are found by id; schedules, manifests, queues, workers and jobs also by name, and what
    extensions find. At most 20 objects are listed.
    """
    found = await search_everywhere(session.app, text, Role.ADMIN)
    await print_page(session, SEARCH_HITS, found, {"text": text})


@command(None, "history", "queue:mail", "schedule:nightly -o json", is_list=True, options=PAGE)
async def show_history(
    session: Session,
    target: Annotated[str, argument("KIND:ID", "Kind and name or id of the object, such as queue:mail.")],
    **options: int | str | UUID | None,
) -> None:
    """List the changes of one object, newest first: who, when, what and why."""
    filters = build_filters(options)
    await print_page(session, HISTORY, await session.app.audit.history(target, **filters), filters)
