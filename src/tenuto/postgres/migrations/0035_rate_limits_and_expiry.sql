-- Rate limits: so many starts per second, minute or hour of a queue, of a job or key, or of a group of manifests. The text
-- is that of `RateLimit` (model/work/rate_limits.py), such as '100/m' or '100/m burst 20'. Expiry: a task that has not
-- started at `expires_at` ends as expired.

ALTER TABLE tenuto.tasks
    ADD COLUMN rate_key   text,
    ADD COLUMN rate_limit text,
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN parked_for text,                -- of a scheduled task that is due: the scope whose next token it waits for
    ADD CONSTRAINT tasks_rate_is_whole CHECK ((rate_key IS NULL) = (rate_limit IS NULL)),
    ADD CONSTRAINT tasks_with_rate_are_claimed_under_limits CHECK (rate_key IS NULL OR limit_key IS NOT NULL);
DROP INDEX tenuto.tasks_to_come;
CREATE INDEX tasks_to_come ON tenuto.tasks (run_at) WHERE state = 'scheduled' AND parked_for IS NULL;
CREATE INDEX tasks_parked ON tenuto.tasks (parked_for, rank, run_at, id) WHERE state = 'scheduled' AND parked_for IS NOT NULL;
CREATE INDEX tasks_to_take_by_rate ON tenuto.tasks (rate_key) WHERE state = 'queued' AND rate_key IS NOT NULL;
CREATE INDEX tasks_to_expire ON tenuto.tasks (expires_at) WHERE state <> 'running' AND expires_at IS NOT NULL;

ALTER TABLE tenuto.queues
    ADD COLUMN rate_limit text CHECK (rate_limit ~ '^[1-9][0-9]{0,5}/[smh]( burst [1-9][0-9]{0,5})?$');
ALTER TABLE tenuto.manifest_groups
    ADD COLUMN rate_limit text CHECK (rate_limit ~ '^[1-9][0-9]{0,5}/[smh]( burst [1-9][0-9]{0,5})?$');

-- The tokens of a scope (a queue, a rate key, a group, all manifests), as the instant of the next one.
CREATE TABLE tenuto.rate_buckets (
    scope       text PRIMARY KEY,
    rate_limit  text,                          -- as of the last claim; null: the limit was removed
    next_at     timestamptz NOT NULL,
    release_at  timestamptz                    -- when parked tasks are queued again; null: there are none
) WITH (fillfactor = 50);
CREATE INDEX rate_buckets_to_release ON tenuto.rate_buckets (release_at) WHERE release_at IS NOT NULL;

-- The same as RateLimit.interval, .tokens_at and .next_after in model/work/rate_limits.py;
-- tests/store/work/test_rate_limits.py compares them.
CREATE FUNCTION tenuto.rate_burst(rate text) RETURNS integer LANGUAGE sql IMMUTABLE
RETURN coalesce(nullif(split_part(rate, ' burst ', 2), ''), '1')::integer;

CREATE FUNCTION tenuto.rate_interval(rate text) RETURNS interval LANGUAGE sql IMMUTABLE
RETURN interval '1 microsecond' * ceil(
    CASE substr(split_part(rate, '/', 2), 1, 1) WHEN 's' THEN 1000000 WHEN 'm' THEN 60000000 ELSE 3600000000 END
    / split_part(rate, '/', 1)::numeric
)::double precision;

CREATE FUNCTION tenuto.rate_tokens(rate text, next_at timestamptz, at timestamptz) RETURNS integer LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN rate IS NULL THEN NULL
    WHEN next_at IS NULL THEN tenuto.rate_burst(rate)
    WHEN next_at > at THEN 0
    ELSE least(
        tenuto.rate_burst(rate)::numeric,
        floor(extract(epoch FROM at - next_at) / extract(epoch FROM tenuto.rate_interval(rate))) + 1
    )::integer
END;

CREATE FUNCTION tenuto.rate_next_at(rate text, next_at timestamptz, at timestamptz, taken bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE
RETURN greatest(next_at, at - tenuto.rate_interval(rate) * (tenuto.rate_burst(rate) - 1)) + tenuto.rate_interval(rate) * taken;

-- The function of migration 0016 with the columns rate_key, rate_limit and expires_at.
DROP FUNCTION tenuto.enqueue;
CREATE FUNCTION tenuto.enqueue(
    job text,
    input jsonb DEFAULT '{}',
    queue text DEFAULT 'default',
    priority integer DEFAULT 0,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    unique_key text DEFAULT NULL,
    limit_key text DEFAULT NULL,
    limit_max integer DEFAULT NULL,
    tags text[] DEFAULT NULL,
    correlation_id text DEFAULT NULL,
    policy jsonb DEFAULT '{}',
    initiator_type text DEFAULT 'system',
    initiator_id text DEFAULT NULL,
    initiator_name text DEFAULT session_user,
    parent_id uuid DEFAULT NULL,
    id uuid DEFAULT NULL,
    created_at timestamptz DEFAULT NULL,
    rate_key text DEFAULT NULL,
    rate_limit text DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql
SET search_path = pg_catalog, tenuto, pg_temp
AS $$
DECLARE
    created timestamptz := coalesce(enqueue.created_at, clock_timestamp());
    due timestamptz := coalesce(enqueue.run_at, created + enqueue.delay, created);
    new_id uuid := coalesce(enqueue.id, tenuto.new_id());
    task_state text := CASE WHEN due > created THEN 'scheduled' ELSE 'queued' END;
    task_rank smallint;
    task_tags text[];
    bad_tag text;
    stored_id uuid;
    input_size integer := octet_length(enqueue.input::text);
BEGIN
    PERFORM tenuto.check_name('job', enqueue.job, 200);
    PERFORM tenuto.check_name('queue', enqueue.queue, 64);
    PERFORM tenuto.check_label('unique_key', enqueue.unique_key);
    PERFORM tenuto.check_label('limit_key', enqueue.limit_key);
    PERFORM tenuto.check_label('correlation_id', enqueue.correlation_id);
    IF enqueue.priority IS NULL OR enqueue.priority NOT BETWEEN -1000 AND 1000 THEN
        PERFORM tenuto.refuse_value(
            'task.priority.out_of_range',
            format('priority %s is not a whole number from -1,000 to 1,000', coalesce(enqueue.priority::text, 'NULL'))
        );
    END IF;
    task_rank := -enqueue.priority;
    IF enqueue.run_at IS NOT NULL AND enqueue.delay IS NOT NULL THEN
        PERFORM tenuto.refuse_value(
            'task.run_at.conflict', 'both run_at and delay are given', 'give one of them'
        );
    END IF;
    IF enqueue.delay < interval '0' OR enqueue.delay > interval '366 days' THEN
        PERFORM tenuto.refuse_value(
            'job.delay.out_of_range', format('the delay %s is not between 0 s and 366 days', enqueue.delay)
        );
    END IF;
    IF NOT isfinite(due) OR due < '1970-01-01Z' OR due >= '9001-01-01Z' THEN
        PERFORM tenuto.refuse_value(
            'task.run_at.out_of_range', format('run_at %s is not between the years 1970 and 9000', due)
        );
    END IF;
    IF (enqueue.limit_key IS NULL) <> (enqueue.limit_max IS NULL) THEN
        PERFORM tenuto.refuse_value(
            'task.limit.incomplete',
            'a concurrency limit needs both a key and a number',
            'give limit_key and limit_max together'
        );
    END IF;
    IF enqueue.limit_max NOT BETWEEN 1 AND 100000 THEN
        PERFORM tenuto.refuse_value(
            'task.limit.out_of_range',
            format('limit %s is not a whole number from 1 to 100,000', enqueue.limit_max)
        );
    END IF;
    PERFORM tenuto.check_label('rate_key', enqueue.rate_key);
    IF (enqueue.rate_key IS NULL) <> (enqueue.rate_limit IS NULL) THEN
        PERFORM tenuto.refuse_value(
            'task.rate_limit.incomplete',
            'a rate limit needs both a key and a rate',
            'give rate_key and rate_limit together'
        );
    END IF;
    IF enqueue.rate_limit !~ '^[1-9][0-9]{0,5}/[smh]( burst [1-9][0-9]{0,5})?$' THEN
        PERFORM tenuto.refuse_value(
            'rate_limit.text.invalid',
            format('rate limit %s is not a number of starts per second, minute or hour', left(enqueue.rate_limit, 60)),
            'write it like 100/m, 5/s or 1000/h burst 20'
        );
    END IF;
    IF split_part(enqueue.rate_limit, '/', 1)::integer > 100000
       OR tenuto.rate_burst(enqueue.rate_limit) > split_part(enqueue.rate_limit, '/', 1)::integer THEN
        PERFORM tenuto.refuse_value(
            'rate_limit.value.out_of_range',
            format('rate limit %s needs a count from 1 to 100,000 and a burst from 1 to the count', enqueue.rate_limit)
        );
    END IF;
    IF NOT isfinite(enqueue.expires_at) OR enqueue.expires_at < '1970-01-01Z' OR enqueue.expires_at >= '9001-01-01Z' THEN
        PERFORM tenuto.refuse_value(
            'task.expires_at.invalid', format('expires_at %s is not between the years 1970 and 9000', enqueue.expires_at)
        );
    END IF;
    IF enqueue.run_at IS NOT NULL AND enqueue.expires_at <= enqueue.run_at THEN
        PERFORM tenuto.refuse_value(
            'task.expires_at.before_run_at',
            format('expires_at %s is not after run_at %s', enqueue.expires_at, enqueue.run_at)
        );
    END IF;
    IF enqueue.tags IS NOT NULL THEN
        SELECT array_agg(given.tag ORDER BY given.place), max(given.tag) FILTER (
            WHERE given.tag IS NULL OR length(given.tag) NOT BETWEEN 1 AND 64
               OR given.tag ~ '[\u0001-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]'
        )
        INTO task_tags, bad_tag
        FROM (
            SELECT tag, min(place) AS place
            FROM unnest(enqueue.tags) WITH ORDINALITY AS listed (tag, place)
            GROUP BY tag
        ) AS given;
        IF bad_tag IS NOT NULL OR array_position(enqueue.tags, NULL) IS NOT NULL THEN
            PERFORM tenuto.refuse_value(
                'task.tags.invalid',
                format('tag %s is not a text of 1 to 64 visible characters', coalesce(quote_literal(bad_tag), 'NULL'))
            );
        END IF;
        IF cardinality(task_tags) > 20 THEN
            PERFORM tenuto.refuse_value(
                'task.tags.too_many', format('%s tags are given', cardinality(task_tags)), 'use at most 20'
            );
        END IF;
    END IF;
    IF jsonb_typeof(enqueue.input) IS DISTINCT FROM 'object' THEN
        PERFORM tenuto.refuse_value(
            'job.input.invalid',
            format('input is of type %s, not an object', coalesce(jsonb_typeof(enqueue.input), 'NULL')),
            'give the arguments of the job by name, like {"order": 17}'
        );
    END IF;
    IF input_size > 262144 THEN -- without the spaces that PostgreSQL adds between the parts
        input_size := octet_length(enqueue.input::text) - regexp_count(
            regexp_replace(enqueue.input::text, '"(\\.|[^"\\])*"', '""', 'g'), ' '
        );
        IF input_size > 262144 THEN
            PERFORM tenuto.refuse_value(
                'value.too_large',
                'input is larger than 262,144 bytes',
                'store the data elsewhere and pass a reference to it'
            );
        END IF;
    END IF;
    IF input_size > 400 AND enqueue.input @? 'strict $.**{201}' THEN
        PERFORM tenuto.refuse_value('value.json.too_deep', 'input is nested too deeply', 'use at most 200 levels');
    END IF;
    IF jsonb_typeof(enqueue.policy) IS DISTINCT FROM 'object' THEN
        PERFORM tenuto.refuse_value(
            'task.policy.invalid', 'policy is not a JSON object', 'write it like {"timeout_seconds": 60}'
        );
    END IF;
    IF coalesce(enqueue.initiator_type, '') NOT IN ('user', 'api_key', 'system')
       OR coalesce(length(enqueue.initiator_name), 0) NOT BETWEEN 1 AND 200 THEN
        PERFORM tenuto.refuse_value(
            'actor.name.invalid',
            format(
                'the initiator %s %s is not valid',
                coalesce(quote_literal(enqueue.initiator_type), 'NULL'),
                coalesce(quote_literal(left(enqueue.initiator_name, 60)), 'NULL')
            ),
            'give the type user, api_key or system, and a name of 1 to 200 characters'
        );
    END IF;
    IF enqueue.id IS NOT NULL AND substr(enqueue.id::text, 15, 1) <> '7' THEN
        PERFORM tenuto.refuse_value(
            'task.id.invalid', format('the id %s is not a UUID of version 7', enqueue.id), 'leave it out'
        );
    END IF;
    LOOP
        INSERT INTO tenuto.tasks (
            id, activity_id, state, queue, rank, run_at, kind, name, input, policy, created_at, unique_key, limit_key,
            limit_max, rate_key, rate_limit, expires_at, tags, initiator_type, initiator_id, initiator_name,
            correlation_id, parent_id
        )
        VALUES (
            new_id, new_id, task_state, enqueue.queue, task_rank, due, 'job', enqueue.job, enqueue.input,
            enqueue.policy, created, enqueue.unique_key,
            -- a task with a rate limit needs a limit key, so that claims under limits take it
            coalesce(enqueue.limit_key, 'rate:' || enqueue.rate_key),
            CASE WHEN enqueue.limit_key IS NULL AND enqueue.rate_key IS NOT NULL THEN 100000 ELSE enqueue.limit_max END,
            enqueue.rate_key, enqueue.rate_limit, enqueue.expires_at, task_tags,
            enqueue.initiator_type, enqueue.initiator_id, enqueue.initiator_name, enqueue.correlation_id,
            enqueue.parent_id
        )
        ON CONFLICT DO NOTHING -- a taken id or unique key
        RETURNING tasks.id INTO stored_id;
        IF FOUND THEN
            -- the same text as the statement enqueue_task
            PERFORM pg_notify('tenuto', concat_ws(
                ' ',
                CASE WHEN coalesce(enqueue.limit_key, enqueue.rate_key) IS NULL OR task_state <> 'queued' THEN task_state ELSE 'limited' END,
                enqueue.queue,
                task_rank
            ));
            RETURN stored_id;
        END IF;
        SELECT coalesce(
            (SELECT tasks.id FROM tenuto.tasks WHERE tasks.id = new_id),
            (SELECT tasks.id FROM tenuto.tasks WHERE tasks.unique_key = enqueue.unique_key)
        )
        INTO stored_id;
        IF stored_id IS NOT NULL THEN
            RETURN stored_id;
        END IF;
        -- the task with the unique key has ended meanwhile: try again
    END LOOP;
END
$$;

COMMENT ON FUNCTION tenuto.enqueue IS 'Create a task of a job in the current transaction; docs/how-to/transactional-enqueue.md';
