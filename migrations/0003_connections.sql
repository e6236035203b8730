-- A connection is a tenant's named way to reach a system. A block names it; what is behind the name the block never sees.

CREATE TABLE connections (
    tenant_id     uuid        NOT NULL REFERENCES tenants,
    name          text        NOT NULL CHECK (name ~ '^[a-z][a-z0-9-]{0,63}$'),
    base_url      text        NOT NULL,
    allowed_hosts text[]      NOT NULL,
    abilities     json        NOT NULL DEFAULT '{}',
    updated_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, name)
);
