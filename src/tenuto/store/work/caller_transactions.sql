-- name: enqueue
-- Call the function that enqueues a task (migrations 0016 and 0035). Instants, intervals and arrays are sent as text, because
-- drivers disagree about their types.
SELECT tenuto.enqueue(
    job => $1::text,
    input => $2::text::jsonb,
    queue => $3::text,
    priority => $4::integer,
    run_at => $5::text::timestamptz,
    delay => $6::text::interval,
    unique_key => $7::text,
    limit_key => $8::text,
    limit_max => $9::integer,
    tags => $10::text::text[],
    correlation_id => $11::text,
    policy => $12::text::jsonb,
    initiator_type => $13::text,
    initiator_id => $14::text,
    initiator_name => $15::text,
    parent_id => $16::text::uuid,
    id => $17::text::uuid,
    created_at => $18::text::timestamptz,
    rate_key => $19::text,
    rate_limit => $20::text,
    expires_at => $21::text::timestamptz
)::text AS id;
