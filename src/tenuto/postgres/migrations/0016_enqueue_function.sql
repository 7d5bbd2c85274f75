-- Enqueueing by SQL, for triggers and for programs in any language.

-- A UUID of version 7, like those that Tenuto makes: it begins with the time in milliseconds.
CREATE FUNCTION tenuto.new_id() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN encode(
    set_bit(
        set_bit(
            overlay(
                uuid_send(gen_random_uuid())
                PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                FROM 1 FOR 6
            ),
            52, 1
        ),
        53, 1
    ),
    'hex'
)::uuid;

-- Refuse a value: what is wrong, what to do, and the code of the same error in Python as detail.
CREATE FUNCTION tenuto.refuse_value(code text, message text, remedy text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF remedy IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = message, DETAIL = code;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = message, DETAIL = code, HINT = remedy;
END
$$;

CREATE FUNCTION tenuto.check_name(field text, value text, max_length integer) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF value IS NULL OR length(value) > max_length OR value COLLATE "C" !~ '^[A-Za-z0-9_][A-Za-z0-9_.:/-]*$' THEN
        PERFORM tenuto.refuse_value(
            'value.name.invalid',
            format('%s %s is not a valid name', field, coalesce(quote_literal(left(value, 80)), 'NULL')),
            format('use 1 to %s letters, digits and _ . : / -', max_length)
        );
    END IF;
END
$$;

CREATE FUNCTION tenuto.check_label(field text, value text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF length(value) NOT BETWEEN 1 AND 200 THEN
        PERFORM tenuto.refuse_value(
            'value.label.invalid',
            format('%s %s is not a text of 1 to 200 characters', field, quote_literal(left(value, 60)))
        );
    END IF;
END
$$;

-- Create a task of a job in the current transaction, and return its id, or that of the open task with the same unique
-- key. Workers are notified when the transaction commits. The checks are those of `check_new_task` (model/tasks.py);
-- tests/store/test_enqueue_function.py compares them.
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
    created_at timestamptz DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql
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
            limit_max, tags, initiator_type, initiator_id, initiator_name, correlation_id, parent_id
        )
        VALUES (
            new_id, new_id, task_state, enqueue.queue, task_rank, due, 'job', enqueue.job, enqueue.input,
            enqueue.policy, created, enqueue.unique_key, enqueue.limit_key, enqueue.limit_max, task_tags,
            enqueue.initiator_type, enqueue.initiator_id, enqueue.initiator_name, enqueue.correlation_id,
            enqueue.parent_id
        )
        ON CONFLICT DO NOTHING -- a taken id or unique key
        RETURNING tasks.id INTO stored_id;
        IF FOUND THEN
            -- the same text as the statement enqueue_task
            PERFORM pg_notify('tenuto', concat_ws(
                ' ',
                CASE WHEN enqueue.limit_key IS NULL OR task_state <> 'queued' THEN task_state ELSE 'limited' END,
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
