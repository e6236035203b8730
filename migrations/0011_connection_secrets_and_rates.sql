-- A connection's secrets are sealed by the hosts, each to its tenant, connection and name, with a key that the database
-- never sees: whoever reads these rows reads nothing, and a row that is copied elsewhere does not open.
--
-- A rate belongs to the connection, however many hosts use it, so that its clock is here. `tat` is when the next call
-- would be due if calls were spread evenly (a theoretical arrival time, moved by each call that is made), and `tail` is
-- where the queue of those that wait ends. A step that waits keeps its turn in its own row, which is gone with the step.
-- A connection without a rate has no row, and nothing looks for one.

CREATE TABLE connection_secrets (
    tenant_id  uuid        NOT NULL,
    connection text        NOT NULL,
    name       text        NOT NULL CHECK (name ~ '^(username|password|header:.+)$'),
    key_id     text        NOT NULL,
    -- A nonce of 24 bytes, the text, and a tag of 16.
    sealed     bytea       NOT NULL CHECK (length(sealed) > 40),
    sealed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, connection, name),
    FOREIGN KEY (tenant_id, connection) REFERENCES connections ON DELETE CASCADE
);

CREATE TABLE connection_rates (
    tenant_id  uuid        NOT NULL,
    connection text        NOT NULL,
    calls      int         NOT NULL CHECK (calls > 0),
    per_ms     int         NOT NULL CHECK (per_ms > 0),
    -- As declared; what follows from it if it is not, is in `ahead`.
    burst      int         CHECK (burst BETWEEN 0 AND calls),
    -- Between two calls, and how far a call may be ahead of its time.
    every      interval    NOT NULL CHECK (every > interval '0'),
    ahead      interval    NOT NULL CHECK (ahead >= interval '0'),
    tat        timestamptz NOT NULL DEFAULT now(),
    tail       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, connection),
    FOREIGN KEY (tenant_id, connection) REFERENCES connections ON DELETE CASCADE
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0);

-- When the connection that the step waits for has room for it.
ALTER TABLE open_steps ADD COLUMN turn_at timestamptz;
