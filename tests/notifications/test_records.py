"""The columns of every mapped statement of notifications."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import tenuto_notifications.store
from tenuto import Tenuto
from tenuto.store import row_mapping

for module in pkgutil.walk_packages(tenuto_notifications.store.__path__, "tenuto_notifications.store."):
    importlib.import_module(module.name)
MAPPERS = [
    each for each in row_mapping.registered_mappers() if each.record_type.__module__.startswith("tenuto_notifications.")
]


@pytest.mark.parametrize("mapper", MAPPERS, ids=lambda mapper: mapper.record_type.__name__)
async def test_columns_of_statements_are_the_fields_of_their_record(app: Tenuto, mapper: row_mapping.AnyMapper) -> None:
    assert mapper.statements
    async with (await app.open()).connection() as connection:
        for statement in mapper.statements:
            prepared = await connection.prepare(statement)
            assert mapper.describe_mismatch([column.name for column in prepared.get_attributes()]) is None
