"""The addresses of a crontab become notification rules, which mail failed runs."""

from __future__ import annotations

import pytest

from tenuto import Tenuto
from tenuto.definitions.crontab_import import import_crontab
from tenuto.definitions.document_parser import parse_document
from tenuto.operations.definitions.plans import read_declarations
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
    assert sum(rule.filter.count("long-name-0") + rule.filter.count('"') // 2 for rule in rules) >= 20
