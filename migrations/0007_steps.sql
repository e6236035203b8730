-- An open step is one narrow row, deleted when the step settles; a settled step is appended and never touched again.
--
-- `vt` is the only time: due time while the step waits, expiry of the lease while it is held, so that one look finds due
-- work and lost work alike. `wait` says what is waited for, and survives the holding: a delay that comes due is served, a
-- retry that comes due is another attempt. A lease id names one execution and is never reused.

CREATE TABLE open_steps (
    tenant_id        uuid        NOT NULL,
    id               uuid        NOT NULL,
    run_id           uuid        NOT NULL,
    lineage          uuid        NOT NULL,
    node             text        NOT NULL,
    iteration        int[]       NOT NULL DEFAULT '{}',
    attempt          int         NOT NULL DEFAULT 1 CHECK (attempt > 0),
    wait             text        NOT NULL CHECK (wait IN ('ready', 'delay', 'retry', 'signal', 'child', 'worker', 'blocked')),
    vt               timestamptz NOT NULL,
    lease_id         uuid,
    host_id          uuid,
    losses           int         NOT NULL DEFAULT 0 CHECK (losses >= 0),
    block            bytea       CHECK (length(block) = 32),
    queued_at        timestamptz NOT NULL DEFAULT now(),
    first_started_at timestamptz,
    started_at       timestamptz,
    error            json,
    PRIMARY KEY (tenant_id, id),
    CHECK ((lease_id IS NULL) = (host_id IS NULL)),
    CHECK (wait <> 'blocked' OR (vt = 'infinity' AND lease_id IS NULL)),
    CHECK (lease_id IS NULL OR first_started_at IS NOT NULL)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX open_steps_due ON open_steps (tenant_id, vt);
CREATE INDEX open_steps_run ON open_steps (tenant_id, run_id);

CREATE TABLE settled_steps (
    tenant_id  uuid        NOT NULL,
    run_id     uuid        NOT NULL,
    id         uuid        NOT NULL,
    lineage    uuid        NOT NULL,
    node       text        NOT NULL,
    iteration  int[]       NOT NULL,
    state      text        NOT NULL CHECK (state IN ('succeeded', 'skipped', 'failed', 'cancelled')),
    attempt    int         NOT NULL,
    losses     int         NOT NULL,
    output     json,
    error      json,
    choice     text,
    logs       json,
    queued_at  timestamptz NOT NULL,
    started_at timestamptz,
    settled_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, run_id, id),
    CHECK (state = 'succeeded' OR output IS NULL),
    CHECK ((state = 'failed') = (error IS NOT NULL))
);

-- What came of an attempt that did not settle its step: a retry, a lost host, a block.
CREATE TABLE step_attempts (
    tenant_id  uuid        NOT NULL,
    run_id     uuid        NOT NULL,
    step_id    uuid        NOT NULL,
    lease_id   uuid        NOT NULL,
    attempt    int         NOT NULL,
    host_id    uuid        NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz NOT NULL DEFAULT now(),
    ended      text        NOT NULL CHECK (ended IN ('retry', 'lost', 'blocked', 'handed_back')),
    error      json,
    logs       json,
    PRIMARY KEY (tenant_id, run_id, step_id, lease_id)
);
