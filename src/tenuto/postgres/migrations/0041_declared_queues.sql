-- What a definition file declared of a queue last: the limit, the rate limit, the pause. Null: no file declares it.

ALTER TABLE tenuto.queues ADD COLUMN declared jsonb CHECK (jsonb_typeof(declared) = 'object');
