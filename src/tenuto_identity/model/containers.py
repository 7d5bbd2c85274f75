"""Which containers of a system are selected for reading and writing."""

from __future__ import annotations

from collections.abc import Sequence

from tenuto_identity.model import dn
from tenuto_identity.model.schema import ContainerScope, ContainerSelection


def is_selected(container: str, selections: Sequence[ContainerSelection]) -> bool:
    """Return whether the nearest selection at or above a container includes it; without selections all are."""
    best, included = -1, not any(each.included for each in selections)
    for each in selections:
        if not _applies(container, each):
            continue
        depth = dn.depth(each.address)
        if depth > best:
            best, included = depth, each.included
    return included


def _applies(container: str, selection: ContainerSelection) -> bool:
    if not dn.is_below(container, selection.address):
        return False
    if selection.scope is ContainerScope.SUBTREE:
        return True
    return dn.depth(container) == dn.depth(selection.address)
