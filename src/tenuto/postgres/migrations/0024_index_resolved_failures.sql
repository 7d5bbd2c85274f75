-- The last resolved dead letter of a kind of failure, for the list of failures.

CREATE INDEX dead_letters_resolved_failures ON tenuto.dead_letters (fingerprint, resolved_at) WHERE resolved_at IS NOT NULL;
