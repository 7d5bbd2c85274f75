"""``tenuto manifest group``: what a group of manifests shares, how many of it may be active, and what is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from tenuto.cli.command import Session, command, login_name
from tenuto.cli.formatting import ago
from tenuto.cli.option_parsing import by_option
from tenuto.errors import Invalid, NotFound

ALL = "*"
_FIELDS = ("name", "max_active", "priority", "enabled", "changed_at", "changed_by", "manifests", "active")
"""Of a group as data. While nothing is said of all manifests together, nothing of them is counted either."""


def add_to(manifests: typer.Typer) -> None:
    """Put the commands into the group."""
    command(manifests, "groups", "tenuto manifest groups", "tenuto manifest groups -o json")(groups)
    command(
        manifests,
        "group",
        "tenuto manifest group reports",
        "tenuto manifest group reports --max-active 10 --priority 5",
        "tenuto manifest group '*' --max-active 200",
    )(group)


async def groups(session: Session) -> None:
    """List the groups of manifests, their limits, and what is active of each; * stands for all manifests together."""
    from tenuto.cli.output import show_json

    found = list(some := await session.app.manifests.groups())
    while some:
        found += (some := await session.app.manifests.groups(after=found[-1]["name"]))
    if session.as_json:
        show_json(found)
    elif not found:
        session.say("no groups yet; put a manifest into one: tenuto manifest edit EXTERNAL_ID --group NAME")
    else:
        _show(found, (await session.app.open()).clock.now())


async def group(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The group's name; '*' for all manifests together.")],
    max_active: Annotated[
        int | None, typer.Option(metavar="N", help="How many runs of it may be active at once, everywhere.")
    ] = None,
    no_limit: Annotated[bool, typer.Option("--no-limit", help="As many as there are slots.")] = False,
    priority: Annotated[
        int | None, typer.Option(metavar="N", help="Added to the priority of what it enqueues from now on.")
    ] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether anything of it may begin.", show_default=False)
    ] = None,
) -> None:
    """Show a group of manifests, or set its limit, its priority, and whether anything of it may begin.

    What runs goes on to its end, also if the limit is now lower.
    """
    from tenuto.cli.output import show_json

    if max_active is not None and no_limit:
        raise Invalid("cannot stand beside --no-limit", field="--max-active", remedy="give one of the two")
    most: int | Literal["keep"] | None = "keep" if max_active is None else max_active
    if no_limit:
        most = None
    changes = most != "keep" or priority is not None or enabled is not None
    with session.as_user() as app, by_option({"group": "NAME", "name": "NAME"}):
        if changes:
            await app.manifests.change_group(name, max_active=most, priority=priority, enabled=enabled)
        try:
            found = [await app.manifests.group(name)]
        except NotFound:
            if name != ALL:
                raise
            found = []
    if session.as_json:
        show_json(found[0] if found else {**dict.fromkeys(_FIELDS), "name": ALL, "priority": 0, "enabled": True})
        return
    if changes:
        session.say(f"{_words(name)}: {_standing(found[0])}, by {login_name()}")
    elif found:
        _show(found, (await app.open()).clock.now())
    else:
        session.say("all manifests together have no limit")


def _words(name: str) -> str:
    return "all manifests together" if name == ALL else f"group {name}"


def _standing(found: dict[str, Any]) -> str:
    most = "no limit" if found["max_active"] is None else f"at most {found['max_active']} active"
    priority = f", priority {found['priority']}" if found["priority"] else ""
    return f"{most} ({found['active']} now){priority}{'' if found['enabled'] else ', disabled'}"


def _show(found: Any, now: Any) -> None:
    from tenuto.cli.output import show_table, state

    show_table(
        ("group", "state", "active", "limit", "priority", "manifests", "changed"),
        [
            (
                "* (all together)" if each["name"] == ALL else each["name"],
                state("on" if each["enabled"] else "off"),
                each["active"],
                "none" if each["max_active"] is None else each["max_active"],
                each["priority"],
                each["manifests"],
                f"{ago(each['changed_at'], now)} by {each['changed_by']}" if each["changed_at"] else "",
            )
            for each in found
        ],
        spare=("changed", "manifests"),
        flexible=("group",),
    )
