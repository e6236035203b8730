-- A tenant's key-value space, which the steps of all its runs share. A value is written by the transaction that settles
-- the step which put it there, and not before; the effect names the receipt of that. The last one to settle wins.

CREATE TABLE stored_values (
    tenant_id  uuid        NOT NULL REFERENCES tenants,
    key        text        NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 512),
    value      bytea       NOT NULL CHECK (octet_length(value) <= 65536),
    effect_id  uuid        NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, key)
);
