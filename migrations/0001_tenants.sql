-- A tenant is the unit of isolation: its id comes first in every key below. Its API keys are kept as keyed hashes and
-- shown once. A creating request that names an idempotency key keeps its answer here, so that a repeat gets the same one.
-- Every action of an operator leaves an audit row.
--
-- Payloads are json, not jsonb, here and in every table below: what is handed over must be what was recorded, and jsonb
-- loses the order of keys, the sign of a zero, and every text with a NUL. Nothing looks inside them.

CREATE TABLE tenants (
    id         uuid        PRIMARY KEY,
    name       text        NOT NULL UNIQUE CHECK (name ~ '^[a-z][a-z0-9-]{0,63}$'),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE api_keys (
    tenant_id  uuid        NOT NULL REFERENCES tenants,
    id         uuid        NOT NULL,
    prefix     text        NOT NULL UNIQUE,
    hash       bytea       NOT NULL CHECK (length(hash) = 32),
    scope      text        NOT NULL CHECK (scope IN ('viewer', 'operator', 'author', 'admin')),
    label      text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz,
    PRIMARY KEY (tenant_id, id)
);

CREATE TABLE idempotent_requests (
    tenant_id    uuid        NOT NULL REFERENCES tenants,
    key          text        NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    request_hash bytea       NOT NULL CHECK (length(request_hash) = 32),
    begun_at     timestamptz NOT NULL DEFAULT now(),
    status       int,
    body         bytea,
    PRIMARY KEY (tenant_id, key),
    CHECK ((status IS NULL) = (body IS NULL))
);

CREATE TABLE audit (
    tenant_id uuid        NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    id        uuid        NOT NULL,
    actor     text        NOT NULL,
    action    text        NOT NULL,
    subject   uuid,
    run_id    uuid,
    detail    json        NOT NULL DEFAULT '{}',
    PRIMARY KEY (tenant_id, id)
);
CREATE INDEX audit_run ON audit (tenant_id, run_id, at);
