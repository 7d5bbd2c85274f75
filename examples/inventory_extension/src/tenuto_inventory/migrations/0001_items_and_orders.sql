CREATE TABLE tenuto_inventory.items (
    name       text PRIMARY KEY,
    stock      integer NOT NULL DEFAULT 0,
    level      integer NOT NULL,
    from_file  boolean NOT NULL DEFAULT false,
    request_id uuid,                                  -- the request that added the item
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE tenuto_inventory.orders (
    task_id  uuid PRIMARY KEY,
    item     text NOT NULL,
    quantity integer NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX orders_by_time ON tenuto_inventory.orders (at);

-- Stock levels over time, one partition per month.
CREATE TABLE tenuto_inventory.levels (
    at    timestamptz NOT NULL,
    item  text NOT NULL,
    stock integer NOT NULL
) PARTITION BY RANGE (at);
CREATE TABLE tenuto_inventory.levels_default PARTITION OF tenuto_inventory.levels DEFAULT;
