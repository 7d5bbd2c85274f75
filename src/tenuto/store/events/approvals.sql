-- name: load_requesting_step
-- Return the execution and the position of the step that requests an approval.
SELECT execution.id AS execution_id, execution.schedule_name, execution.plan AS plan_json, task.step_index
FROM tenuto.tasks AS task
LEFT JOIN tenuto.executions AS execution ON execution.id = task.execution_id
WHERE task.id = $1;

-- name: insert_approval
-- Store a new approval.
INSERT INTO tenuto.approvals (
    id, activity_id, execution_id, schedule_name, step, message, context, role, approvers, required_count, on_deadline,
    requested_at, expires_at, requester_type, requester_id, requester_name
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
ON CONFLICT (id) DO NOTHING;

-- name: load_approval
-- Return one approval. One whose step has ended without a decision is withdrawn.
SELECT id, execution_id, schedule_name, step, message, context, role, approvers, required_count, on_deadline,
       requested_at, expires_at, requester_name,
       CASE
           WHEN state = 'pending' AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = approvals.id)
               THEN 'withdrawn'
           ELSE state
       END AS state,
       ended_at,
       (SELECT count(*) FROM tenuto.approval_decisions WHERE approval_id = approvals.id AND decision = 'approve')
           AS approval_count
FROM tenuto.approvals
WHERE id = $1;

-- name: lock_approval
-- Let no other transaction decide or expire an approval until this one ends.
SELECT id
FROM tenuto.approvals
WHERE id = $1
-- guard: approvals.lock
FOR UPDATE;

-- name: insert_decision
-- Store the decision of a person, unless the person has decided before.
INSERT INTO tenuto.approval_decisions (
    approval_id, person, actor_type, actor_id, decision, reason, via_link, decided_at
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (approval_id, person) DO NOTHING
RETURNING person;

-- name: end_approval
-- End a pending approval.
UPDATE tenuto.approvals
SET state = $2, ended_at = $3
WHERE id = $1 AND state = 'pending'
RETURNING id;

-- name: list_decisions
-- Return the decisions of approvals, in the order in which they were made.
SELECT approval_id, person, actor_type, actor_id, decision, reason, via_link, decided_at
FROM tenuto.approval_decisions
WHERE approval_id = ANY ($1::uuid[])
ORDER BY approval_id, decided_at, person
LIMIT 10000;

-- name: list_approvals
-- Return approvals, newest first, below a cursor.
SELECT id, execution_id, schedule_name, step, message, context, role, approvers, required_count, on_deadline,
       requested_at, expires_at, requester_name,
       CASE WHEN state = 'pending' AND NOT is_open THEN 'withdrawn' ELSE state END AS state,
       ended_at,
       (SELECT count(*) FROM tenuto.approval_decisions WHERE approval_id = found.id AND decision = 'approve')
           AS approval_count
FROM tenuto.approvals AS found
CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = found.id) AS is_open) AS step
WHERE ($1::text IS NULL OR $1 = CASE WHEN state = 'pending' AND NOT is_open THEN 'withdrawn' ELSE state END)
  AND ($2::uuid IS NULL OR execution_id = $2)
  AND ($3::timestamptz IS NULL OR (requested_at, id) < ($3, $4::uuid))
ORDER BY requested_at DESC, id DESC
LIMIT $5;

-- name: list_pending_approvals
-- Return the approvals that wait for a decision, the first deadline first.
SELECT id, execution_id, schedule_name, step, message, context, role, approvers, required_count, on_deadline,
       requested_at, expires_at, requester_name, state, ended_at,
       (SELECT count(*) FROM tenuto.approval_decisions WHERE approval_id = approvals.id AND decision = 'approve')
           AS approval_count
FROM tenuto.approvals
WHERE state = 'pending'
  AND EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = approvals.id)
ORDER BY expires_at, id
LIMIT $1;

-- name: list_requests_since
-- Return the approvals that were requested after an instant, the first one first.
SELECT id, execution_id, schedule_name, step, message, role, approvers, requested_at, expires_at
FROM tenuto.approvals
WHERE requested_at > $1
ORDER BY requested_at, id
LIMIT $2;

-- name: count_decisions
-- Return the approvals that wait for a decision, with the number of decisions about each.
SELECT id, (SELECT count(*) FROM tenuto.approval_decisions WHERE approval_id = approvals.id) AS decision_count
FROM tenuto.approvals
WHERE state = 'pending'
  AND EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = approvals.id)
ORDER BY expires_at, id
LIMIT $1;

-- name: find_approvals
-- Return ids in a range, for a prefix that a user entered.
SELECT id
FROM tenuto.approvals
WHERE id BETWEEN $1 AND $2
ORDER BY id
LIMIT 3;

-- name: insert_link
-- Store the digest of a link. Nothing is returned if it is stored: the reply to the first commit was lost.
INSERT INTO tenuto.approval_links (digest, approval_id, person, created_at, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (digest) DO NOTHING
RETURNING digest;

-- name: load_link
-- Return an unused link that has not expired.
SELECT approval_id, person, expires_at
FROM tenuto.approval_links
WHERE digest = $1 AND used_at IS NULL AND expires_at > $2;

-- name: use_link
-- Use the link of a person, once.
UPDATE tenuto.approval_links
SET used_at = $2
WHERE digest = $1
  AND person = $3
  AND used_at IS NULL -- guard: approvals.link_is_used_once
  AND expires_at > $2 -- guard: approvals.expired_link
RETURNING approval_id, person, expires_at;

-- name: end_links
-- End all links that can still be used.
UPDATE tenuto.approval_links
SET expires_at = clock_timestamp()
WHERE used_at IS NULL AND expires_at > clock_timestamp();

-- name: delete_ended_approvals
-- Delete a small batch of approvals whose deadline was before the cut-off and whose step has ended.
DELETE FROM tenuto.approvals
WHERE id = ANY (ARRAY(
    SELECT id
    FROM tenuto.approvals
    WHERE requested_at < $1
      AND NOT EXISTS (SELECT FROM tenuto.tasks WHERE tasks.id = approvals.id) -- guard: approvals.of_open_steps
    ORDER BY requested_at
    LIMIT $2
))
RETURNING id;
