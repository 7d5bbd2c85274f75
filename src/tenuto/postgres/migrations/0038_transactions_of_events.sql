-- The transactions in which executions ended, instants of schedules were missed, dead letters were opened and processes
-- were lost. Notifications read them in the order of the transactions: an instant would not do, because what happened
-- earlier may be committed later. Rows that were written before this migration have none.

ALTER TABLE tenuto.executions ADD COLUMN ended_transaction_id bigint;
CREATE INDEX executions_by_ended_transaction ON tenuto.executions (ended_transaction_id)
    WHERE ended_transaction_id IS NOT NULL;

ALTER TABLE tenuto.occurrences ADD COLUMN transaction_id bigint;
ALTER TABLE tenuto.occurrences ALTER COLUMN transaction_id SET DEFAULT pg_current_xact_id()::text::bigint;
CREATE INDEX occurrences_missed_by_transaction ON tenuto.occurrences (transaction_id) WHERE decision = 'missed';

ALTER TABLE tenuto.dead_letters ADD COLUMN transaction_id bigint;
ALTER TABLE tenuto.dead_letters ALTER COLUMN transaction_id SET DEFAULT pg_current_xact_id()::text::bigint;
CREATE INDEX dead_letters_by_transaction ON tenuto.dead_letters (transaction_id);

ALTER TABLE tenuto.workers ADD COLUMN lost_transaction_id bigint;
