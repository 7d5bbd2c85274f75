"""Acceptance scenarios of imports: bad rows, bad files, and guards (A11 to A24, A36)."""

from __future__ import annotations

import pytest

from tenuto import Step, manual
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto_identity.runs.run_lifecycle import Run
from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, HEADER, PEOPLE, Site


def many(count: int, department: str = "Research") -> list[str]:
    return [f"{2000 + n},First{n},Last{n},m{n}@example.org,{department},Fellow,,2020-01-01," for n in range(count)]


async def objects(site: Site) -> dict[str, str]:
    database = await site.database()
    rows = await database.fetch_all(
        "SELECT anchor, state, attributes::text AS attributes FROM tenuto_identity.connector_objects"
        " WHERE system_number = 1 ORDER BY anchor"
    )
    return {row["anchor"]: row["attributes"] for row in rows if row["state"] == "normal"}


async def test_a11_row_without_anchor_is_an_item_and_the_others_are_imported(site: Site) -> None:
    site.write_hr(ADA, GRACE, ALAN.replace("1003", ""), EDSGER)
    run = await site.run("HR", "Full Import")
    assert run.state == "completed_with_warning"
    assert run.errors == ["missing_anchor"]
    assert run.changes == ["Added"] * 3
    (item,) = [each for each in run.items if each["error"]]
    assert "line 4" in item["message"]
    assert "" not in await objects(site)


async def test_a12_duplicate_rows_are_both_refused_and_do_not_count_as_deleted(site: Site) -> None:
    await site.run("HR", "Full Import")
    before = (await objects(site))["1002"]
    site.write_hr(ADA, GRACE.replace("Engineer,", "First,"), ALAN, GRACE.replace("Engineer,", "Second,"), EDSGER)
    run = await site.run("HR", "Full Import")
    assert run.errors == ["duplicate_object"] * 2
    assert [each["message"] for each in run.items] == ["the anchor '1002' occurs several times in lines 3, 5"] * 2
    assert run.changes == []
    assert (await objects(site))["1002"] == before
    assert run.state == "completed_with_warning"


@pytest.mark.parametrize("content", ["", HEADER + "\n", "\n\n"])
async def test_a14_empty_file_fails_and_changes_nothing(site: Site, content: str) -> None:
    await site.run("HR", "Full Import")
    before = await objects(site)
    site.hr.write_text(content, encoding="utf-8")
    steps = [
        Step.of("run_profile", {"system": "HR", "profile": name}, name=name) for name in ("Full Import", "Full Sync")
    ]
    await site.app.schedules.create(schedule_definition("night", manual(), steps))
    fired = await site.app.schedules.run("night")
    assert fired.execution_id is not None
    assert (await site.app.executions.wait(fired.execution_id, 60)).state == "failed"
    failed, *earlier = await site.app.extensions.identity.runs(system="HR")
    assert (failed.profile, failed.state) == ("Full Import", "failed"), "the schedule stops before the sync"
    assert len(earlier) == 1
    assert await site.items(failed.id) == []
    assert await objects(site) == before


async def test_a15_truncated_file_fails_without_deletions(site: Site) -> None:
    await site.run("HR", "Full Import")
    before = await objects(site)
    site.hr.write_text("\n".join([HEADER, ADA, GRACE, '1003,"Al']), encoding="utf-8")
    run = await site.run("HR", "Full Import")
    assert run.state == "failed"
    assert "line 4" in str(run.error)
    assert await objects(site) == before


async def test_a15_file_that_is_cut_at_a_line_end_is_held(site: Site) -> None:
    site.write_hr(*many(100))
    await site.run("HR", "Full Import")
    site.write_hr(*many(1))
    run = await site.run("HR", "Full Import")
    assert run.state == "completed_with_error"
    assert "99 of 100" in str(run.error)
    assert len(await objects(site)) == 100


async def test_a16_undecodable_row_is_an_item_and_its_object_stays(site: Site) -> None:
    await site.run("HR", "Full Import")
    site.hr.write_bytes("\n".join([HEADER, ADA, GRACE.replace("Hopper", "Müller"), ALAN, EDSGER, ""]).encode("cp1252"))
    run = await site.run("HR", "Full Import")
    assert (run.state, run.errors, run.changes) == ("completed_with_warning", ["undecodable"], [])
    assert "byte" in run.items[0]["message"]
    assert "Hopper" in (await objects(site))["1002"]
    await site.apply(site.definitions().replace("hr.csv}", "hr.csv, encoding: cp1252}"))
    run = await site.run("HR", "Full Import")
    assert (run.state, run.changes) == ("completed", ["Updated"])
    assert "Müller" in (await objects(site))["1002"]


async def test_a17_changed_header_fails_before_any_row_is_read(site: Site) -> None:
    await site.run("HR", "Full Import")
    before = await objects(site)
    site.hr.write_text("\n".join([HEADER.replace("mail", "e-mail"), *PEOPLE, ""]), encoding="utf-8")
    run = await site.run("HR", "Full Import")
    assert run.state == "failed"
    assert "mail" in str(run.error)
    assert await objects(site) == before


async def test_a18_cleared_column_holds_the_system_until_a_clean_import(site: Site) -> None:
    site.write_hr(*many(30))
    assert (await site.run("HR", "Full Import")).state == "completed"
    site.write_hr(*many(30, department=""))
    run = await site.run("HR", "Full Import")
    assert run.state == "completed_with_error", run
    refused = await site.run("HR", "Full Sync")
    assert refused.state == "failed"
    assert "department" in str(refused.error)
    site.write_hr(*many(30))
    assert (await site.run("HR", "Full Import")).state == "completed"
    assert (await site.run("HR", "Full Sync")).state == "completed"


async def test_a19_file_that_changes_while_it_is_read_fails_without_deletions(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.apply(site.definitions(page_size=2))
    site.write_hr(*many(15))
    await site.run("HR", "Full Import")
    site.write_hr(*many(12))
    changed: list[str] = []

    def change(point: str) -> None:
        if point == "import_page_committed" and not changed:
            changed.append(point)
            site.hr.write_text(site.hr.read_text() + many(13)[-1] + "\n")

    monkeypatch.setattr(Run, "observe", staticmethod(change))
    run = await site.run("HR", "Full Import")
    assert run.state == "failed"
    assert "changed while it was read" in str(run.error)
    assert len(await objects(site)) == 15
    monkeypatch.undo()
    assert (await site.run("HR", "Full Import")).changes == ["Deleted"] * 2


async def test_a20_bad_value_keeps_the_old_value_of_its_attribute(site: Site) -> None:
    await site.run("HR", "Full Import")
    site.write_hr(ADA, GRACE.replace("2020-02-01", "soon").replace("Hopper", "Murray"), ALAN, EDSGER)
    run = await site.run("HR", "Full Import")
    assert run.errors == ["bad_value"]
    assert "soon" in next(each["message"] for each in run.items if each["error"])
    found = (await objects(site))["1002"]
    assert "2020-02-01" in found
    assert "Murray" in found
    assert run.state == "completed_with_warning"
    again = await site.run("HR", "Full Import")
    assert (again.errors, again.changes, again.state) == (["bad_value"], [], "completed_with_warning")


async def test_a24_hostile_values_are_data(site: Site) -> None:
    hostile = ["*)(uid=*", "a,ou=admins", "=cmd|' /C calc'!A0", "<script>", "Robert'); DROP TABLE", "%", "_"]
    rows = [f'30{n:02},"{text}",Last,h{n}@example.org,Research,Fellow,,2020-01-01,' for n, text in enumerate(hostile)]
    nul = "3100,a\x00b,Last,nul@example.org,Research,Fellow,,2020-01-01,"
    long, too_long = (
        f"{id},Long{id},Last,long{id}@example.org,Research,{'x' * length},,2020-01-01,"
        for id, length in ((3101, 1_000_000), (3102, 1_100_000))
    )
    site.write_hr(*rows, nul, long, too_long)
    night = await site.nightly()
    assert night["HR Full Import"].errors == ["bad_value", "bad_value"]
    assert await site.count("connector_objects", "length(attributes #>> '{title,0}') = 1000000") == 3
    assert await site.count("connector_objects", "length(attributes #>> '{title,0}') > 1000000") == 0
    entries = {each["attributes"]["cn"][0] for each in site.ad.objects("user").values()}
    assert {f"{text} Last" for text in hostile} <= entries
    assert await site.count("pending_exports") == 0


async def test_a36_mass_deletion_is_held_and_a_smaller_one_is_not(site: Site) -> None:
    rows = many(100)
    site.write_hr(*rows)
    await site.run("HR", "Full Import")
    site.write_hr(*rows[:79])
    held = await site.run("HR", "Full Import")
    assert held.state == "completed_with_error"
    assert held.changes == []
    assert len(await objects(site)) == 100
    assert (await site.run("HR", "Full Sync")).state == "failed"
    site.write_hr(*rows[:80])
    run = await site.run("HR", "Full Import")
    assert run.changes == ["Deleted"] * 20
    assert (await site.run("HR", "Full Sync")).state == "completed"


async def test_a36_few_deletions_are_never_held(site: Site) -> None:
    rows = many(15)
    site.write_hr(*rows)
    await site.run("HR", "Full Import")
    site.write_hr(*rows[:6])
    assert (await site.run("HR", "Full Import")).changes == ["Deleted"] * 9


async def test_a29_unreadable_type_fails_and_deletes_nothing(site: Site) -> None:
    await site.nightly()
    before = await site.count("connector_objects")
    site.ad.behave(unreadable=["user"])
    run = await site.run("AD", "Full Import")
    assert run.state == "failed"
    assert "nothing was read" in str(run.error)
    assert await site.count("connector_objects") == before


async def test_a28_incomplete_read_fails_without_deletions(site: Site) -> None:
    await site.nightly()
    site.ad.behave(size_limit=2)
    run = await site.run("AD", "Full Import")
    assert run.state == "failed"
    assert "size limit" in str(run.error)
    assert await site.count("connector_objects", "state = 'normal'") == 12
