-- A run is written when it is admitted and when it ends. What must be unique while it is unfinished, and the count of its
-- open steps, live in a row of their own that is deleted at the end: at most one unfinished run a lineage, and at most
-- one a record where the trigger says so.

CREATE TABLE runs (
    tenant_id   uuid        NOT NULL,
    id          uuid        NOT NULL,
    lineage     uuid        NOT NULL,
    workflow_id uuid        NOT NULL,
    version_id  uuid        NOT NULL,
    start_key   text        NOT NULL CHECK (length(start_key) BETWEEN 1 AND 300),
    trigger     text        NOT NULL CHECK (trigger IN ('api', 'event')),
    event_id    uuid,
    -- Which of the workflow's bindings to the event's type.
    ordinal     int,
    record_id   text,
    event       json        NOT NULL,
    input       json        NOT NULL,
    admitted_at timestamptz NOT NULL DEFAULT now(),
    state       text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'succeeded', 'failed', 'cancelled')),
    ended_at    timestamptz,
    output      json,
    error       json,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, workflow_id, start_key),
    CHECK ((trigger = 'event') = (event_id IS NOT NULL)),
    CHECK ((event_id IS NULL) = (ordinal IS NULL)),
    CHECK ((state = 'open') = (ended_at IS NULL)),
    CHECK (state = 'succeeded' OR output IS NULL),
    CHECK (state = 'failed' OR error IS NULL)
) WITH (fillfactor = 70);
-- A run's id is made when it is admitted and begins with the time, so that lists are in the order of ids.
CREATE INDEX runs_workflow ON runs (tenant_id, workflow_id, id);
-- For people who look for a record, and for once_per_record, which looks for any run of it, finished or not.
CREATE INDEX runs_record ON runs (tenant_id, record_id, workflow_id, id) WHERE record_id IS NOT NULL;

CREATE TABLE open_runs (
    tenant_id   uuid NOT NULL,
    run_id      uuid NOT NULL,
    lineage     uuid NOT NULL,
    workflow_id uuid NOT NULL,
    record_id   text,
    exclusive   boolean NOT NULL,
    open_steps  int  NOT NULL CHECK (open_steps >= 0),
    PRIMARY KEY (tenant_id, run_id),
    UNIQUE (tenant_id, lineage),
    CHECK (NOT exclusive OR record_id IS NOT NULL)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0);
CREATE UNIQUE INDEX open_runs_record ON open_runs (tenant_id, workflow_id, record_id) WHERE exclusive;
