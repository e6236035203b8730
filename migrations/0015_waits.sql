-- A step that waits for something from outside has a row here for as long as it waits: for a signal to its run, an event,
-- a person, or a child run. Whoever brings it takes the lock of the run before it looks for who waits, and whoever begins
-- to wait takes it before it looks for what has come: so nothing that came first is lost.
--
-- What has come to a run is kept with it, and taken once. An event is kept with the runs that wait for its type; what was
-- recorded before a run began to wait is looked up among the events then, from the run's admission on.

CREATE TABLE waits (
    tenant_id uuid        NOT NULL,
    step_id   uuid        NOT NULL,
    run_id    uuid        NOT NULL,
    kind      text        NOT NULL CHECK (kind IN ('signal', 'event', 'approval', 'child')),
    -- The signal, the type of the event, or the child run.
    name      text        NOT NULL,
    record_id text,
    deadline  timestamptz NOT NULL DEFAULT 'infinity',
    since     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, step_id)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX waits_name ON waits (tenant_id, name);
CREATE INDEX waits_run ON waits (tenant_id, run_id);

CREATE TABLE signals (
    tenant_id   uuid        NOT NULL,
    run_id      uuid        NOT NULL,
    id          uuid        NOT NULL,
    kind        text        NOT NULL CHECK (kind IN ('signal', 'event')),
    name        text        NOT NULL,
    record_id   text,
    data        json        NOT NULL,
    sent_by     text        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The step that took it.
    taken_by    uuid,
    PRIMARY KEY (tenant_id, run_id, id)
);

-- The types of events that some workflow waits for: no other is looked at.
CREATE TABLE listened_types (
    tenant_id  uuid NOT NULL,
    event_type text NOT NULL,
    PRIMARY KEY (tenant_id, event_type)
);
CREATE INDEX events_type ON events (tenant_id, type, recorded_at);

-- A question to a person. Its id is that of the step that asks it, so that it is asked once.
CREATE TABLE approvals (
    tenant_id  uuid        NOT NULL,
    id         uuid        NOT NULL,
    run_id     uuid        NOT NULL,
    node       text        NOT NULL,
    title      text        NOT NULL,
    detail     json        NOT NULL,
    form       json,
    asked_at   timestamptz NOT NULL DEFAULT now(),
    deadline   timestamptz,
    outcome    text        CHECK (outcome IN ('approved', 'rejected', 'expired', 'cancelled')),
    decided_at timestamptz,
    decided_by text,
    answer     json,
    PRIMARY KEY (tenant_id, id),
    CHECK ((outcome IS NULL) = (decided_at IS NULL)),
    CHECK ((outcome IN ('approved', 'rejected')) = (decided_by IS NOT NULL))
);
CREATE INDEX approvals_open ON approvals (tenant_id, asked_at, id) WHERE outcome IS NULL;
