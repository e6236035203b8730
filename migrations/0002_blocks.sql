-- A block version is named by the sha256 of its bytes. The bytes are kept beside it, so that any host can make it
-- runnable; what a host compiled stays in that host's own cache.

CREATE TABLE components (
    tenant_id uuid  NOT NULL REFERENCES tenants,
    digest    bytea NOT NULL CHECK (length(digest) = 32),
    bytes     bytea NOT NULL,
    PRIMARY KEY (tenant_id, digest)
);
ALTER TABLE components ALTER COLUMN bytes SET STORAGE EXTERNAL;

CREATE TABLE block_versions (
    tenant_id   uuid        NOT NULL,
    name        text        NOT NULL CHECK (name ~ '^[a-z][a-z0-9-]{0,63}$'),
    digest      bytea       NOT NULL,
    bytes_len   bigint      NOT NULL,
    descriptor  json        NOT NULL,
    imports     text[]      NOT NULL,
    uploaded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, name, digest),
    FOREIGN KEY (tenant_id, digest) REFERENCES components
);
CREATE INDEX block_versions_newest ON block_versions (tenant_id, name, uploaded_at DESC);
