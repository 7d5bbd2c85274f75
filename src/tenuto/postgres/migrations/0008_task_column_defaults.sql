-- Defaults for the most frequent values, so that COPY need not send them.

ALTER TABLE tenuto.tasks
    ALTER COLUMN state SET DEFAULT 'queued',
    ALTER COLUMN queue SET DEFAULT 'default',
    ALTER COLUMN rank SET DEFAULT 0,
    ALTER COLUMN kind SET DEFAULT 'job',
    ALTER COLUMN policy SET DEFAULT '{}';
