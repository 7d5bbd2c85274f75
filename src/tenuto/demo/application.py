"""The app of the demo: jobs that only wait, log and sometimes fail, and schedules that run them.

Everything is labelled as an example: the name of the installation, the descriptions of the schedules and the initiator
of what people would do. No job touches anything outside of the database.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tenuto.app import Tenuto
from tenuto.jobs.context import Context
from tenuto.model.definitions.policies import RetryPolicy
from tenuto.model.definitions.steps import Step
from tenuto.model.triggers import at, cron, every
from tenuto.settings import Settings

INSTALLATION_NAME = "Tenuto demo (example data)"
ZONE = "Europe/London"
NIGHTLY, POLL = "Nightly HR Sync", "Poll supplier feed"
BILLS, THUMBNAILS = "bills", "thumbnails"
MAIL_QUEUE, DATABASE_QUEUE = "mail", "db"
QUEUES = ("default", MAIL_QUEUE, DATABASE_QUEUE)
"""The queues that the worker of the demo serves."""
PAST_DURATIONS = {
    "hr_import": "61s",
    "hr_sync": "48s",
    "ad_export": "35s",
    "ldap_export": "52s",
    "confirm_import": "20s",
    "collect_figures": "75s",
    "render_report": "30s",
    "poll_feed": "12s",
    "dump_database": "42m",
    "upload_backup": "9m",
    "close_ledger": "4m",
    "send_bill": "3s",
    "make_thumbnail": "1s",
    "receive_orders": "14s",
    "book_orders": "8s",
}
"""Durations of the jobs in the history of the demo. Live jobs take a few seconds."""
_UNREACHABLE_HOURS = (3, 4)
"""Hours in which the supplier of the example does not respond."""


@dataclass
class Pace:
    """Speed of the jobs of the demo."""

    is_live: bool = False
    """In the history of the demo jobs end at once; the simulated clock gives them their durations."""

    async def work(self, ctx: Context, seconds: float, total: int, noun: str) -> None:
        """Report progress and log; wait only in the present."""
        for done in range(1, total + 1):
            if self.is_live:
                await asyncio.sleep(seconds / total)
            if self.is_live or done == total:
                ctx.progress(done, total, noun)
            if done % max(1, total // 6) == 0:
                ctx.log.info("%s %d of %d", noun, done, total)


def apply_demo_settings(settings: Settings) -> Settings:
    """Return the settings with the labels of the demo."""
    return settings.model_copy(update={"web_name": INSTALLATION_NAME, "web_environment": "test"})


def define_demo(app: Tenuto, pace: Pace) -> None:
    """Add the jobs, schedules and manifests of the demo to an app."""
    _define_nightly_sync(app, pace)
    _define_reports(app, pace)
    _define_backup(app, pace)
    _define_manifests(app, pace)


def define_live_schedules(app: Tenuto, pace: Pace) -> None:
    """Add a schedule that runs every 45 seconds. Only the last hour of the history has it: a week has 13,000 runs."""

    @app.job
    async def receive_orders(ctx: Context, shop: str) -> int:
        """Receive orders of a shop for some seconds."""
        ctx.log.info("connected to %s", shop)
        await pace.work(ctx, 14.0 if shop == "web shop" else 9.0, 24, "order")
        return 24

    @app.job
    async def book_orders(ctx: Context) -> None:
        """Book the received orders."""
        await pace.work(ctx, 8.0, 40, "booking")

    shops = [
        Step.job(receive_orders, shop, name=f"Receive {shop}") for shop in ("web shop", "market place", "branches")
    ]
    app.schedule(
        "Order intake",
        every("45s"),
        [shops, Step.job(book_orders, name="Book orders")],
        description="Example: receives orders of three shops in parallel, then books them.",
    )


def _define_nightly_sync(app: Tenuto, pace: Pace) -> None:
    @app.job
    async def hr_import(ctx: Context) -> int:
        """Read people from the HR system."""
        await pace.work(ctx, 12.0, 480, "person")
        return 480

    @app.job(retry=RetryPolicy(max_attempts=3, base_seconds=6, jitter=0))
    async def hr_sync(ctx: Context) -> int:
        """Decide by rules; every third night, and in the live demo, the first attempt meets a deadlock."""
        await pace.work(ctx, 9.0 if ctx.attempt > 1 else 3.0, 480, "decision")
        if ctx.attempt == 1 and (pace.is_live or ctx.scheduled_for.day % 3 == 0):
            raise RuntimeError("deadlock detected: process 4711 waits for ShareLock on transaction 90210")
        return 480

    @app.job
    async def ad_export(ctx: Context) -> int:
        """Write accounts to Active Directory."""
        await pace.work(ctx, 8.0, 35, "account")
        return 35

    @app.job(max_attempts=2)
    async def ldap_export(ctx: Context) -> int:
        """Write accounts to LDAP; on one night of the week the server refuses the connection."""
        await pace.work(ctx, 10.0, 480, "entry")
        if not pace.is_live and ctx.scheduled_for.weekday() == 6:
            raise ConnectionError("ldap.example: connection refused")
        if ctx.scheduled_for.weekday() == 2:
            ctx.warn("uid=mmueller was changed by another client")
        return 480

    @app.job
    async def confirm_import(ctx: Context, system: str) -> int:
        """Read the written accounts back."""
        await pace.work(ctx, 6.0, 60, f"{system} account")
        return 60

    app.schedule(
        NIGHTLY,
        cron("0 2 * * *", zone=ZONE),
        [
            Step.job(hr_import, name="HR System - Full Import"),
            Step.job(hr_sync, name="HR System - Full Sync"),
            [Step.job(ad_export, name="AD - Export"), Step.job(ldap_export, name="LDAP - Export")],
            [
                Step.job(confirm_import, "AD", name="AD - Confirming Import"),
                Step.job(confirm_import, "LDAP", name="LDAP - Confirming Import"),
            ],
        ],
        description="Example: imports people, decides by rules, writes two targets and reads them back.",
    )


def _define_reports(app: Tenuto, pace: Pace) -> None:
    @app.job
    async def collect_figures(ctx: Context) -> dict[str, int]:
        """Collect figures of the last hour."""
        await pace.work(ctx, 15.0, 12, "table")
        return {"tables": 12, "rows": 40_512}

    @app.job
    async def render_report(ctx: Context) -> str:
        """Write the report."""
        await pace.work(ctx, 7.0, 9, "page")
        return f"report-{ctx.scheduled_for:%Y-%m-%d-%H}.pdf"

    @app.job(retry=RetryPolicy(max_attempts=3, base_seconds=60, jitter=0))
    async def poll_feed(ctx: Context) -> int:
        """Read new prices; the supplier does not respond in the hours of its maintenance."""
        await pace.work(ctx, 5.0, 6, "price list")
        if not pace.is_live and ctx.scheduled_for.hour in _UNREACHABLE_HOURS and ctx.scheduled_for.day % 2:
            raise ConnectionError("supplier.example does not respond")
        return 6

    app.schedule(
        "Hourly report",
        cron("0 * * * *", zone=ZONE),
        [Step.job(collect_figures, name="Collect figures"), Step.job(render_report, name="Render")],
        description="Example: collects figures every hour and renders a report.",
    )
    app.schedule(
        POLL, every("30m"), [Step.job(poll_feed, name="Poll")], description="Example: polls prices of a supplier."
    )


def _define_backup(app: Tenuto, pace: Pace) -> None:
    @app.job(queue=DATABASE_QUEUE)
    async def dump_database(ctx: Context) -> dict[str, int]:
        """Dump a database."""
        await pace.work(ctx, 30.0, 24, "table")
        return {"megabytes": 5320}

    @app.job(queue=DATABASE_QUEUE)
    async def upload_backup(ctx: Context) -> None:
        """Upload the dump."""
        await pace.work(ctx, 10.0, 20, "part")

    @app.job(queue=DATABASE_QUEUE)
    async def close_ledger(ctx: Context) -> None:
        """Close the ledger of the day."""
        await pace.work(ctx, 12.0, 30, "account")

    app.schedule(
        "Backup",
        at(["01:30", "13:30"], zone=ZONE),
        [Step.job(dump_database, name="Dump"), Step.job(upload_backup, name="Upload")],
        description="Example: dumps a database twice a day and uploads the dump.",
    )
    app.schedule(
        "Close of day",
        at(["18:00"], days="mon-fri", zone=ZONE),
        [Step.job(close_ledger, name="Close"), Step.job(upload_backup, name="Archive")],
        description="Example: closes the ledger on working days.",
        overlap="queue_one",
    )


def _define_manifests(app: Tenuto, pace: Pace) -> None:
    @app.job(queue=MAIL_QUEUE, retry=RetryPolicy(max_attempts=3, base_seconds=30, jitter=0))
    async def send_bill(ctx: Context, number: int, address: str | None = None) -> str:
        """Send a bill; some bills have no address, and the mail server is not always there."""
        await pace.work(ctx, 2.0, 3, "page")
        if address is None:
            raise ValueError(f"customer {number} has no address")
        if number % 9 == 0:
            raise ConnectionError("smtp.example: the server does not respond")
        return address

    @app.job
    async def make_thumbnail(ctx: Context, picture: int) -> str:
        """Make a small picture."""
        if pace.is_live:
            await asyncio.sleep(0.4)
        return f"picture-{picture:05}.webp"

    app.manifest(BILLS, send_bill, on_demand=True, name="Bills", description="Example: one item per bill.")
    app.manifest(THUMBNAILS, make_thumbnail, on_demand=True, name="Thumbnails", description="Example: small pictures.")
