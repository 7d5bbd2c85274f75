-- Whoever goes on with a batch, or sends it again, must come with the same inputs: a digest tells. (How many parts there were
-- nobody has ever asked.)

ALTER TABLE tenuto.batches
    ADD COLUMN digest text,                    -- of the inputs that are in, in their order
    DROP COLUMN chunks;
