"""Check and discovery of a connected system, as tasks of a worker."""

from __future__ import annotations

from tests.identity.scenario_site import Site


async def test_check_names_what_the_connector_can_do(site: Site) -> None:
    await site.apply(site.definitions())
    done = await site.app.wait(await site.app.extensions.identity.check("HR"), 60)
    assert done.state == "completed"
    assert done.output["connector"] == "csv"
    assert done.output["read_one"] is True


async def test_check_of_a_file_without_a_selected_column_fails_with_its_name(site: Site) -> None:
    await site.apply(site.definitions())
    site.hr.write_text("employee_id,first\n1,Ada\n", encoding="utf-8")
    done = await site.app.wait(await site.app.extensions.identity.check("HR"), 60)
    assert done.state == "failed"
    assert "last" in str(done.error)


async def test_discovery_stores_the_schema_and_names_the_differences(site: Site) -> None:
    await site.apply(site.definitions())
    site.hr.write_text("employee_id,first,last,phone\n1,Ada,Lovelace,1\n", encoding="utf-8")
    operations = site.app.extensions.identity
    done = await site.app.wait(await operations.discover("HR"), 60)
    assert done.state == "completed_with_warning"
    assert "person.mail" in done.output["missing"]
    assert done.output["unselected"] == ["person.phone"]
    stored = await operations.schema("HR")
    (person,) = stored["types"]
    assert [each["name"] for each in person["attributes"]] == ["employee_id", "first", "last", "phone"]
