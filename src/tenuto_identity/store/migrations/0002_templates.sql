-- Tasks that generated example data: a repeated attempt of such a task generates nothing.
CREATE TABLE tenuto_identity.template_runs (
    task_id      uuid PRIMARY KEY,
    template     text NOT NULL,
    seed         text NOT NULL,
    object_count bigint NOT NULL,
    at           timestamptz NOT NULL
);
