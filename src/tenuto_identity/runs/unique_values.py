"""Choice of values for attributes with ``unique``: the first candidate that is free in the metaverse and in the page.

An expression has a thousand candidates, and nearly always one of the first is free. Candidates are therefore looked up
in rounds, and only for choices that have not found one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tenuto.postgres.database import Connection
from tenuto_identity.model.rules.expression_values import (
    UniqueBases,
)
from tenuto_identity.model.values import fold_key
from tenuto_identity.runs.import_reader import index_key
from tenuto_identity.store import metaverse
from tenuto_identity.store.metaverse import MatchKey

FIRST_CANDIDATES = 1
"""Nearly always free: three of them cost three lookups for every new metaverse object."""
CANDIDATE_GROWTH_FACTOR = 6
"""Each round looks up so many times the candidates of the one before."""


@dataclass(slots=True)
class UniqueAttribute:
    """An attribute of a metaverse object that waits for a free candidate."""

    type_number: int
    attribute_number: int
    bases: UniqueBases
    known: list[tuple[str, MatchKey]] = field(default_factory=list)
    """Candidates that were looked up, in order, each with its key."""
    is_complete: bool = False
    """Whether all candidates were looked up."""
    _remaining: Iterator[str] | None = None

    def take_candidates(self, count: int) -> list[MatchKey]:
        """Add the next candidates to the known ones; return their keys."""
        if self._remaining is None:
            self._remaining = self.bases.iterate()
        found = list(islice(self._remaining, count))
        self.is_complete = len(found) < count
        added = [(each, (self.type_number, self.attribute_number, index_key(fold_key(each)))) for each in found]
        self.known += added
        return [key for _, key in added]


async def choose_unique(connection: Connection, attributes: Sequence[UniqueAttribute]) -> list[str | None]:
    """Return the value of each attribute, in order; None where all candidates are taken."""
    owners: set[MatchKey] = set()
    waiting, count = list(attributes), FIRST_CANDIDATES
    while True:
        wanted = dict.fromkeys(key for each in waiting for key in each.take_candidates(count))
        owners.update(await metaverse.find_key_owners(connection, list(wanted)))
        chosen, waiting = choose_free(attributes, owners)
        if not waiting:
            return chosen
        count *= CANDIDATE_GROWTH_FACTOR


def choose_free(
    attributes: Sequence[UniqueAttribute], owned: Collection[MatchKey]
) -> tuple[list[str | None], list[UniqueAttribute]]:
    """Choose for each attribute in order the first candidate that is neither owned nor chosen before it.

    Also return the attributes that need further candidates; while there are any, the choice is not final.
    """
    taken = set(owned)
    chosen: list[str | None] = []
    exhausted: list[UniqueAttribute] = []
    for each in attributes:
        value, key = next((found for found in each.known if found[1] not in taken), (None, None))
        if key is not None:
            taken.add(key)
        elif not each.is_complete:
            exhausted.append(each)
        chosen.append(value)
    return chosen, exhausted
