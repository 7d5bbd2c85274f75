"""Objects that cannot be imported: each is an item, the others are imported, and nothing counts as deleted wrongly."""

from __future__ import annotations

import pytest

from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, Site


async def test_row_without_anchor_is_an_item_and_the_others_are_imported(site: Site) -> None:
    await site.apply(site.definitions())
    site.write_hr(ADA, GRACE, ALAN.replace("1003", ""), EDSGER)
    run = await site.run("HR", "Full Import")
    assert (run.state, run.errors, run.changes) == ("completed_with_warning", ["missing_anchor"], ["Added"] * 3)
    (item,) = [each for each in run.items if each["error"]]
    assert "line 4" in item["message"]


@pytest.mark.parametrize("page_size", [None, 2])
async def test_duplicate_anchor_is_refused_in_one_page_and_across_pages(site: Site, page_size: int | None) -> None:
    await site.apply(site.definitions(page_size=page_size))
    await site.run("HR", "Full Import")
    changed = GRACE.replace("Engineer,1001", "Admiral,1001")
    site.write_hr(ADA, changed, ALAN, changed, EDSGER)
    run = await site.run("HR", "Full Import")
    assert run.state == "completed_with_warning"
    assert set(run.errors) == {"duplicate_object"}
    assert "Deleted" not in run.changes
    database = await site.database()
    title = await database.fetch_value(
        "SELECT attributes -> 'title' ->> 0 FROM tenuto_identity.connector_objects WHERE anchor = '1002'"
    )
    assert title == "Engineer", "neither of the two rows wins"
    site.write_hr(ADA, changed, ALAN, EDSGER)
    assert (await site.run("HR", "Full Import")).changes == ["Updated"]


async def test_new_object_that_occurs_twice_in_different_pages_is_not_kept(site: Site) -> None:
    await site.apply(site.definitions(page_size=2))
    site.write_hr(ADA, GRACE, ALAN, EDSGER, GRACE)
    run = await site.run("HR", "Full Import")
    assert set(run.errors) == {"duplicate_object"}
    assert await site.count("connector_objects", "anchor = '1002'") == 0
    assert await site.count("connector_objects") == 3


async def test_bad_value_keeps_the_old_value_and_imports_the_rest(site: Site) -> None:
    await site.apply(site.definitions())
    await site.run("HR", "Full Import")
    site.write_hr(ADA, GRACE.replace("2020-02-01", "soon").replace("Engineer,1001", "Admiral,1001"), ALAN, EDSGER)
    run = await site.run("HR", "Full Import")
    assert (run.state, run.errors, run.changes) == ("completed_with_warning", ["bad_value"], ["Updated"])
    database = await site.database()
    stored = await database.fetch_one(
        "SELECT attributes -> 'title' ->> 0 AS title, attributes -> 'starts' ->> 0 AS starts"
        " FROM tenuto_identity.connector_objects WHERE anchor = '1002'"
    )
    assert stored is not None
    assert (stored["title"], stored["starts"]) == ("Admiral", "2020-02-01")


async def test_object_with_a_bad_value_is_rejected_if_the_system_says_so(site: Site) -> None:
    text = site.definitions().replace("connector: csv", "connector: csv\n    on_bad_value: reject")
    await site.apply(text)
    site.write_hr(ADA, GRACE.replace("2020-02-01", "soon"))
    run = await site.run("HR", "Full Import")
    assert (run.errors, run.changes) == (["bad_value"], ["Added"])


async def test_run_with_all_objects_in_error_fails(site: Site) -> None:
    await site.apply(site.definitions())
    site.write_hr(ADA.replace("1001", "", 1), GRACE.replace("1002", "", 1))
    run = await site.run("HR", "Full Import")
    assert (run.state, run.errors) == ("failed", ["missing_anchor"] * 2)


async def test_delta_import_reads_changes_since_the_watermark(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    anchors = {each["attributes"]["cn"][0]: anchor for anchor, each in site.ad.objects("user").items()}
    site.ad.change("user", anchors["Ada Lovelace"], title="Countess")
    site.ad.delete("user", anchors["Alan Turing"])
    site.ad.put("user", "new", {"cn": "New", "mail": "new@example.org"}, address="cn=New,dc=ad,dc=test")
    run = await site.run("AD", "Delta Import")
    assert (run.state, run.changes) == ("completed", ["Added", "Deleted", "Updated"])
    assert (await site.run("AD", "Delta Import")).items == []


async def test_delta_import_without_valid_watermark_reads_everything_with_a_warning(site: Site) -> None:
    await site.apply(site.definitions())
    first = await site.run("AD", "Delta Import")
    assert (first.state, "watermark_lost" in (first.error or "")) == ("completed_with_warning", True)
    assert (await site.run("AD", "Delta Import")).state == "completed"
    site.ad.put("user", "new", {"cn": "New"}, address="cn=New,dc=ad,dc=test")
    site.ad.forget_log()
    lost = await site.run("AD", "Delta Import")
    assert (lost.state, lost.changes) == ("completed_with_warning", ["Added"])


async def test_failed_read_keeps_the_watermark_and_detects_no_deletion(site: Site) -> None:
    await site.apply(site.definitions())
    await site.nightly()
    database = await site.database()
    before = await database.fetch_all("SELECT * FROM tenuto_identity.watermarks ORDER BY 1")
    site.ad.behave(fail_after=2)
    run = await site.run("AD", "Full Import")
    assert (run.state, run.changes) == ("failed", [])
    assert await database.fetch_all("SELECT * FROM tenuto_identity.watermarks ORDER BY 1") == before
    assert await site.count("connector_objects", "state = 'obsolete'") == 0
