"""The addresses of a crontab become notification rules, which mail failed runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tenuto import Tenuto
from tenuto.definitions.document_parser import parse_document
from tenuto.definitions.importers.crontab import import_crontab
from tenuto.model.filters import MAX_ALTERNATIVES
from tenuto.operations.definitions.plans import read_declarations
from tenuto_notifications.model.rules import MAX_RECIPIENTS
from tenuto_notifications.operations import RuleView
from tests.notifications.failing_schedule import delivered, operations_of
from tests.notifications.receivers import MailServer
from tests.support.waiting import eventually

CRONTAB = """\
MAILTO=ops@example.org,root
0 1 * * * /bin/false --nightly
0 2 * * * echo "a b"; exit 3
MAILTO=""
0 3 * * * /bin/false
MAILTO=ana@example.org
0 4 * * * true
"""


async def test_failed_entry_of_a_crontab_is_mailed_to_its_address(
    app: Tenuto, mail_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mail_server.configure(app, monkeypatch)
    found = import_crontab(CRONTAB, source="crontab")
    reports = [str(omission) for omission in found.omissions]
    assert "line 1: MAILTO=root: no address; output is in the log of each attempt" in reports
    declarations = read_declarations([parse_document("crontab.yaml", found.to_yaml().encode())])
    await app.plans.apply(await app.plans.plan(declarations))
    assert [rule.filter for rule in await operations_of(app).rules()] == ['schedule:"true"', 'schedule:"false","echo"']
    async with app.worker(), app.scheduler():
        for name in ("false 2", "true", "false", "echo"):
            id = (await app.schedules.run(name)).execution_id
            assert id is not None
            await app.executions.wait(id, 30)
        await eventually(lambda: len(mail_server.received) == 2 or None, 30)
        await eventually(lambda: delivered(app), 20)
    subjects = sorted(str(mail["Subject"]) for mail in mail_server.received)
    assert subjects == ["echo failed", "false failed"]
    assert {str(mail["To"]) for mail in mail_server.received} == {"ops@example.org"}


async def test_many_entries_of_one_address_have_several_rules(app: Tenuto) -> None:
    lines = [f"{minute} 1 * * * /srv/{'long-name-' * 5}{minute}" for minute in range(20)]
    found = import_crontab("\n".join(["MAILTO=ops@example.org", *lines]), source="crontab")
    declarations = read_declarations([parse_document("crontab.yaml", found.to_yaml().encode())])
    await app.plans.apply(await app.plans.plan(declarations))
    rules = await operations_of(app).rules()
    assert len(rules) == 3
    assert sorted(schedules_of(rules)) == sorted(schedule["name"] for schedule in found.schedules)
    assert len(found.schedules) == 20


async def test_long_lists_of_addresses_with_the_same_prefix_have_rules_of_their_own(app: Tenuto) -> None:
    shared = ",".join(f"person-{number}@example.org" for number in range(8))
    text = (
        f"MAILTO={shared},ana@example.org\n0 1 * * * /srv/first\nMAILTO={shared},ben@example.org\n0 2 * * * /srv/second"
    )
    found = import_crontab(text, source="crontab")
    declarations = read_declarations([parse_document("crontab.yaml", found.to_yaml().encode())])
    await app.plans.apply(await app.plans.plan(declarations))
    rules = await operations_of(app).rules()
    assert {rule.definition["channel"]["to"][-1]: rule.filter for rule in rules} == {
        "ana@example.org": 'schedule:"first"',
        "ben@example.org": 'schedule:"second"',
    }


async def test_more_recipients_than_a_rule_may_have_are_divided(app: Tenuto) -> None:
    people = [f"person-{number}@example.org" for number in range(2 * MAX_RECIPIENTS + 1)]
    found = import_crontab(f"MAILTO={','.join(people)}\n0 1 * * * /srv/nightly", source="crontab")
    declarations = read_declarations([parse_document("crontab.yaml", found.to_yaml().encode())])
    await app.plans.apply(await app.plans.plan(declarations))
    rules = await operations_of(app).rules()
    assert {rule.filter for rule in rules} == {'schedule:"nightly"'}
    recipients = [each for rule in rules for each in rule.definition["channel"]["to"]]
    assert (len(rules), sorted(recipients)) == (3, sorted(people))


async def test_more_schedules_than_alternatives_of_a_filter_are_divided(app: Tenuto) -> None:
    lines = [f"0 1 * * * /srv/{number}" for number in range(MAX_ALTERNATIVES + 1)]
    found = import_crontab("\n".join(["MAILTO=ops@example.org", *lines]), source="crontab")
    declarations = read_declarations([parse_document("crontab.yaml", found.to_yaml().encode())])
    await app.plans.apply(await app.plans.plan(declarations))
    rules = await operations_of(app).rules()
    assert sorted(schedules_of(rules)) == sorted(schedule["name"] for schedule in found.schedules)


def schedules_of(rules: Sequence[RuleView]) -> list[str]:
    """Return the names of schedules in the filters, as often as they are there."""
    return [name for rule in rules for name in re.findall(r'"([^"]+)"', rule.filter)]
