"""The page about SQL tables: its definitions are valid, its statements work, and it names every setting."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tenuto_identity.connectors import registry
from tenuto_identity.connectors.contract import DeletedObject, ImportedObject, ReadScope
from tenuto_identity.connectors.sql.settings import ChangeTable, DeletionMarker, ListTable, SqlSettings, TypeSettings
from tenuto_identity.model.definitions.system_definitions import parse_system
from tests.identity.sql.conftest import OpenSql
from tests.identity.sql.databases import ROLE, PostgresqlDatabase

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "connect-sql.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_documented_definitions_of_sql_systems_are_valid() -> None:
    (text,) = blocks("yaml")
    for each in map(parse_system, yaml.safe_load(text)["systems"]):
        registry.parse_settings(registry.find_connector(each.connector), each.settings)


def test_documentation_names_every_setting_of_the_sql_connector() -> None:
    words = set(re.findall(r"[a-z_0-9]+", PAGE))
    for model in (SqlSettings, TypeSettings, ChangeTable, ListTable, DeletionMarker):
        assert set(model.model_fields) - words == set()


def test_documented_role_and_triggers_work(postgresql: PostgresqlDatabase, open_connector: OpenSql) -> None:
    (text,) = blocks("yaml")
    definition = parse_system(yaml.safe_load(text)["systems"][0])
    postgresql.execute("""DROP SCHEMA IF EXISTS hr CASCADE; CREATE SCHEMA hr;
        CREATE TABLE hr.people (employee_id text PRIMARY KEY, first text, family_name text, mail text, starts date,
                                ends date, manager text, changed_at timestamptz)""")
    role, touch, changes = blocks("sql")
    for statement in (role.partition(";")[2], touch, changes):  # the role exists already
        postgresql.execute(statement.replace("tenuto_hr", ROLE))
    types = dict(definition.settings["types"]["person"])
    scope = ReadScope(tuple(definition.types.values()))
    logged = {key: value for key, value in types.items() if key != "change_column"}
    logged["change_table"] = {"table": "hr.changes"}
    insert = "INSERT INTO hr.people (employee_id, family_name) VALUES "
    for source in (types, logged):
        postgresql.execute("DELETE FROM hr.people; " + insert + "('1', 'Lovelace'), ('2', 'Hopper')")
        connector = open_connector(postgresql.settings(types={"person": source}, read_only=True), *scope.types)
        connector.check()
        watermark = connector.watermark(scope)
        postgresql.execute("UPDATE hr.people SET family_name = 'King' WHERE employee_id = '1'")
        postgresql.execute("DELETE FROM hr.people WHERE employee_id = '2'")
        events = list(connector.read(scope, watermark))
        assert [each.cells["last"] for each in events if isinstance(each, ImportedObject)] == [("King",)]
        deleted = [each.anchor for each in events if isinstance(each, DeletedObject)]
        assert deleted == (["2"] if source is logged else [])
        logged_keys = "SELECT key FROM hr.changes ORDER BY seq DESC LIMIT 2"
        assert [key for (key,) in postgresql.fetch(logged_keys)] == ["2", "1"], "one row for each change"
        watermark = connector.watermark(scope)
        postgresql.execute("UPDATE hr.people SET employee_id = '3' WHERE employee_id = '1'")
        events = list(connector.read(scope, watermark))
        assert [each.anchor for each in events if isinstance(each, ImportedObject)] == ["3"]
        deleted = [each.anchor for each in events if isinstance(each, DeletedObject)]
        assert deleted == (["1"] if source is logged else [])
    postgresql.execute("DROP SCHEMA hr CASCADE")
