"""Choice of unique values: in rounds, with the same result as if all candidates were looked up at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenuto_identity.model.rules.expression_values import (
    UniqueBases,
)
from tenuto_identity.model.values import fold_key
from tenuto_identity.runs.unique_values import CANDIDATE_GROWTH_FACTOR, FIRST_CANDIDATES, UniqueAttribute, choose_free
from tests.identity.scenario_site import ADA, Site

names = st.sampled_from(["ada", "ada2", "ada3", "alan", "grace", "Ada"])


@given(
    bases=st.lists(st.lists(names, min_size=1, max_size=3).map(tuple), min_size=1, max_size=12),
    owned=st.sets(st.sampled_from(["ada", *(f"ada{n}" for n in range(2, 30)), "alan", "alan2", "grace"])),
)
def test_unique_values_in_rounds_equal_those_of_one_lookup(bases: list[tuple[str, ...]], owned: set[str]) -> None:
    expected: list[str | None] = []
    taken = set(owned)
    for each in bases:
        value = next(found for found in UniqueBases(each).candidates() if fold_key(found) not in taken)
        taken.add(fold_key(value))
        expected.append(value)
    attributes = [UniqueAttribute(1, 1, UniqueBases(each)) for each in bases]
    stored = {(1, 1, name) for name in owned}
    looked_up: set[tuple[int, int, str]] = set()
    waiting, count = list(attributes), FIRST_CANDIDATES
    while waiting:
        looked_up.update(key for each in waiting for key in each.take_candidates(count))
        chosen, waiting = choose_free(attributes, stored & looked_up)
        count *= CANDIDATE_GROWTH_FACTOR
    assert chosen == expected


async def test_people_of_one_name_get_different_logins_in_one_page(site: Site) -> None:
    text = site.definitions().replace("'lower(first) + \".\" + lower(last)'", "'unique(slug(first), slug(last))'")
    await site.apply(text)
    people = [ADA.replace("1001", str(2000 + n)).replace("ada@", f"ada{n}@") for n in range(30)]
    site.write_hr(*people[:10])
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    site.write_hr(*people)
    await site.run("HR", "Full Import")
    assert (await site.run("HR", "Delta Sync")).state == "completed"
    database = await site.database()
    rows = await database.fetch_all(
        "SELECT attributes->'login'->>0 AS login FROM tenuto_identity.metaverse_objects ORDER BY id"
    )
    assert [row["login"] for row in rows] == ["ada", "lovelace", *(f"ada{n}" for n in range(2, 30))]
