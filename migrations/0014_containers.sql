-- A container (parallel, map, try) is an open step that waits for the steps inside it. What it has yet to wait for is a
-- row beside its open step, and lives as long as that: whoever settles the last step of a part counts the part here, under
-- the lock of the run, and makes the container due once it can go on. Which parts there are, and what came of them, are
-- rows of their own, so that an item of a long list is read alone.

CREATE TABLE containers (
    tenant_id uuid NOT NULL,
    step_id   uuid NOT NULL,
    -- Parts that have yet to succeed, parts that may yet fail, parts that have yet to begin, and how many of those may.
    awaits    int  NOT NULL,
    tolerates int  NOT NULL,
    waiting   int  NOT NULL CHECK (waiting >= 0),
    room      int  NOT NULL,
    PRIMARY KEY (tenant_id, step_id)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0);

CREATE TABLE container_parts (
    tenant_id uuid NOT NULL,
    step_id   uuid NOT NULL,
    part      int  NOT NULL CHECK (part >= 0),
    item      json,
    state     text NOT NULL CHECK (state IN ('waiting', 'running', 'succeeded', 'failed')),
    output    json,
    -- The node that failed, and why.
    node      text,
    error     json,
    PRIMARY KEY (tenant_id, step_id, part),
    CHECK (state = 'succeeded' OR output IS NULL),
    CHECK ((state = 'failed') = (error IS NOT NULL)),
    CHECK ((error IS NULL) = (node IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0);
