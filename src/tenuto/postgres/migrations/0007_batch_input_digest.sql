-- A digest detects a continued or repeated submission of a batch with other inputs. The number of parts was never
-- used.

ALTER TABLE tenuto.batches
    ADD COLUMN digest text,                    -- of the added inputs, in their order
    DROP COLUMN chunks;
