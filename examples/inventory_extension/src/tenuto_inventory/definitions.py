"""The list ``items`` of definition files."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tenuto.errors import Invalid
from tenuto.extension import ChangeAuthor, DefinitionList, ListChange, ListEntry, ListPlan
from tenuto.postgres.database import Connection


class DeclaredItem(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    level: int = Field(ge=0)


def parse(entry: ListEntry) -> DeclaredItem:
    try:
        return DeclaredItem.model_validate(entry.value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise Invalid(
            f"{field}: {first['msg']}",
            code="inventory.item.invalid",
            field=field,
            remedy="write {name: bolt, level: 100}",
        ) from error


async def plan(connection: Connection, declared: Sequence[DeclaredItem], prune: bool) -> ListPlan:
    rows = await connection.fetch("SELECT name, level, from_file FROM tenuto_inventory.items ORDER BY name")
    stored = {row["name"]: {"level": row["level"]} for row in rows}
    wanted = {item.name: {"level": item.level} for item in declared}
    keys = list(wanted)
    if prune:
        keys += [row["name"] for row in rows if row["from_file"] and row["name"] not in wanted]
    return ListPlan([ListChange.compare(key, stored.get(key), wanted.get(key)) for key in keys])


async def apply(connection: Connection, planned: ListPlan, author: ChangeAuthor) -> None:
    for change in planned.changes:
        if change.effect == "deleted":
            await connection.execute("DELETE FROM tenuto_inventory.items WHERE name = $1", change.key)
        elif change.effect != "unchanged":
            await connection.execute(
                "INSERT INTO tenuto_inventory.items (name, level, from_file, updated_at) VALUES ($1, $2, true, $3)"
                " ON CONFLICT (name) DO UPDATE SET level = $2, from_file = true, updated_at = $3",
                change.key,
                change.after["level"],
                author.now,
            )


ITEMS = DefinitionList("items", parse, lambda item: item.name, plan, apply)
