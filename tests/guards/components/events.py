"""Guards of events from outside, of the waits for them, and of approvals."""

from __future__ import annotations

from tests.guards.guard import Condition, Remove, Replace, guard

_RACES = "races/test_event_races.py"
_WAITS = "worker/test_event_waits.py"
_APPROVALS = "scheduling/test_approvals.py"

GUARDS = (
    guard(
        "events.one_per_id",
        "An id is sent once.",
        Replace("DO NOTHING", "DO UPDATE SET sent_at = excluded.sent_at"),
        f"{_RACES}::test_two_requests_of_the_same_moment_send_one_event",
    ),
    guard(
        "events.send_takes_turns",
        "A sender sees the waits of transactions that began before.",
        Remove(),
        f"{_RACES}::test_event_and_wait_of_the_same_moment_meet",
    ),
    guard(
        "events.wait_takes_turns",
        "A wait sees the events of transactions that began before.",
        Remove(),
        f"{_RACES}::test_event_and_wait_of_the_same_moment_meet",
    ),
    guard(
        "events.lock_before_defer",
        "No event ends a wait between the decision to give up the slot and its commit.",
        Remove(),
        f"{_RACES}::test_event_during_giving_up_the_slot_wakes_the_task",
    ),
    guard(
        "events.not_after_the_deadline",
        "A wait whose deadline has passed receives nothing.",
        Condition("$5::timestamptz IS NOT NULL"),
        f"{_RACES}::test_wait_past_its_deadline_receives_nothing",
    ),
    guard(
        "events.not_to_ended_tasks",
        "The wait of an ended task receives nothing.",
        Remove(),
        f"{_WAITS}::test_cancelled_wait_ends_at_once_and_receives_nothing",
    ),
    guard(
        "events.only_deferred_tasks",
        "An event does not shorten the delay of a retry.",
        Remove(),
        f"{_RACES}::test_event_does_not_shorten_the_delay_of_a_retry",
    ),
    guard(
        "events.paused_stays_held",
        "An event does not release a task that a pause holds.",
        Replace("CASE WHEN task.state = 'scheduled' THEN 'queued' ELSE task.state END", "'queued'"),
        f"{_WAITS}::test_event_for_a_paused_execution_waits_until_it_is_resumed",
    ),
    guard(
        "events.wait_fence",
        "A wait with an old fence is not stored.",
        Condition("$2::bigint IS NOT NULL"),
        f"{_RACES}::test_wait_of_a_lost_attempt_is_not_registered",
    ),
    guard(
        "events.wait_worker",
        "A worker that does not hold the task stores no wait.",
        Condition("$3::uuid IS NOT NULL"),
        f"{_RACES}::test_wait_of_a_lost_attempt_is_not_registered",
    ),
    guard(
        "events.wait_lease",
        "A worker whose lease has expired stores no wait.",
        Remove(),
        f"{_RACES}::test_wait_of_a_lost_attempt_is_not_registered",
    ),
    guard(
        "events.wait_row_lock",
        "The task stays with its worker while a wait is stored.",
        Remove(),
        f"{_RACES}::test_worker_that_loses_the_task_while_it_begins_to_wait_stores_no_wait",
    ),
    guard(
        "events.kept_event_is_taken_once",
        "A kept event is received by one wait.",
        Remove(),
        f"{_RACES}::test_two_waits_of_the_same_moment_do_not_share_a_kept_event",
    ),
    guard(
        "events.expired_event_is_not_taken",
        "An event that has expired is not received.",
        Condition("$3::timestamptz IS NOT NULL"),
        f"{_WAITS}::test_expired_events_and_orphaned_waits_are_deleted",
    ),
    guard(
        "events.waits_of_open_tasks",
        "Retention keeps the waits of open tasks.",
        Remove(),
        f"{_WAITS}::test_expired_events_and_orphaned_waits_are_deleted",
    ),
    guard(
        "events.same_id_same_event",
        "The same id with another payload is refused.",
        Condition("False"),
        f"{_WAITS}::test_same_id_is_sent_once_and_another_payload_is_refused",
    ),
    guard(
        "approvals.lock",
        "Decisions about an approval take turns.",
        Remove(),
        f"{_RACES}::test_two_approvals_of_the_same_moment_complete_an_approval",
    ),
    guard(
        "approvals.link_is_used_once",
        "A link decides once.",
        Remove(),
        f"{_RACES}::test_link_that_is_used_twice_at_the_same_moment_decides_once",
    ),
    guard(
        "approvals.expired_link",
        "A link that has expired does not decide.",
        Replace("expires_at > $2", "$2::timestamptz IS NOT NULL"),
        f"{_APPROVALS}::test_expired_link_does_not_decide",
    ),
    guard(
        "restore.approval_links_end",
        "Links of approvals that a restore brought back end.",
        Remove(),
        f"{_APPROVALS}::test_restored_link_does_not_decide",
    ),
    guard(
        "approvals.may_decide",
        "Only named persons and callers with the role decide.",
        Condition("False"),
        f"{_APPROVALS}::test_only_named_persons_and_roles_decide_each_once",
    ),
    guard(
        "approvals.deadline",
        "No decision is accepted after the deadline.",
        Condition("False"),
        f"{_APPROVALS}::test_decision_after_the_deadline_is_refused_before_the_step_continues",
    ),
    guard(
        "approvals.of_open_steps",
        "Retention keeps the approvals of open steps.",
        Remove(),
        f"{_APPROVALS}::test_approvals_of_ended_steps_are_deleted",
    ),
)
