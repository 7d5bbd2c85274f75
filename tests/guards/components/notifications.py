"""Guards of notifications."""

from __future__ import annotations

from tests.guards.guard import Condition, Replace, guard

GUARDS = (
    guard(
        "notifications.late_commit",
        "Rows of transactions that were in progress are read when these have ended.",
        Replace("ANY ($2::bigint[])", "ANY ('{}'::bigint[])"),
        "notifications/test_collection.py::test_event_that_commits_after_later_ones_is_found",
        places=5,
    ),
    guard(
        "notifications.one_collector",
        "Collectors take turns, and do not wait for each other.",
        Replace("SKIP LOCKED", ""),
        "notifications/test_collection.py::test_second_collector_does_not_wait_for_the_first",
    ),
    guard(
        "notifications.event_once_per_rule",
        "A rule has an event once.",
        Replace("UNIQUE", ""),
        "notifications/test_collection.py::test_event_is_recorded_once_although_it_is_found_again",
        schema="events_once_per_rule",
    ),
    guard(
        "notifications.progress_of_new_rule",
        "The progress is not removed while a rule is being enabled.",
        Replace("DO UPDATE SET singleton = true", "DO NOTHING"),
        "notifications/test_collection.py::test_rule_that_is_enabled_while_the_last_one_is_forgotten_keeps_its_progress",
    ),
    guard(
        "notifications.own_tasks",
        "The failure of a delivery leads to no notification.",
        Condition("true"),
        "notifications/test_collection.py::test_failure_of_a_delivery_leads_to_no_notification",
        places=2,
    ),
    guard(
        "notifications.one_open_condition",
        "A rule has a condition open once.",
        Replace("UNIQUE", ""),
        "notifications/test_conditions.py::test_condition_of_two_collectors_is_one_event",
        schema="episodes_one_open",
    ),
    guard(
        "notifications.test_once_per_request",
        "A repeated request sends one test message.",
        Condition("False"),
        "notifications/test_delivery.py::test_repeated_test_request_sends_one_message",
    ),
    guard(
        "notifications.silenced",
        "Events of a silenced rule are not sent.",
        Condition("False"),
        "notifications/test_conditions.py::test_silenced_events_are_recorded_and_never_sent",
    ),
    guard(
        "notifications.silence_has_begun",
        "A silence applies from its start.",
        Condition("true"),
        "notifications/test_conditions.py::test_silence_applies_between_its_start_and_its_end",
    ),
    guard(
        "notifications.silence_has_ended",
        "A silence applies until its end.",
        Condition("true"),
        "notifications/test_conditions.py::test_silence_applies_between_its_start_and_its_end",
    ),
)
