-- Most tasks are jobs in the one queue, wanted now, with nothing special about them. What is so need not be said of each.

ALTER TABLE tenuto.tasks
    ALTER COLUMN state SET DEFAULT 'queued',
    ALTER COLUMN queue SET DEFAULT 'default',
    ALTER COLUMN rank SET DEFAULT 0,
    ALTER COLUMN kind SET DEFAULT 'job',
    ALTER COLUMN policy SET DEFAULT '{}';
