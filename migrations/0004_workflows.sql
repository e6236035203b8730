-- Every save of a workflow is an immutable version with its compiled plan; at most one version is active and serves new
-- runs. The active version's triggers are bindings, one row per (event type, trigger), so that matching an event is an
-- index look-up.

CREATE TABLE workflows (
    tenant_id         uuid    NOT NULL REFERENCES tenants,
    id                uuid    NOT NULL,
    name              text    NOT NULL CHECK (name ~ '^[a-z][a-z0-9-]{0,63}$'),
    active_version_id uuid,
    paused            boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, name)
);

CREATE TABLE workflow_versions (
    tenant_id       uuid        NOT NULL,
    id              uuid        NOT NULL,
    workflow_id     uuid        NOT NULL,
    number          int         NOT NULL CHECK (number > 0),
    definition_hash bytea       NOT NULL CHECK (length(definition_hash) = 32),
    definition      json        NOT NULL,
    source          text        NOT NULL,
    plan            json        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, workflow_id, number),
    FOREIGN KEY (tenant_id, workflow_id) REFERENCES workflows
);

CREATE TABLE bindings (
    tenant_id   uuid NOT NULL,
    event_type  text NOT NULL,
    workflow_id uuid NOT NULL,
    ordinal     int  NOT NULL,
    version_id  uuid NOT NULL,
    PRIMARY KEY (tenant_id, event_type, workflow_id, ordinal),
    FOREIGN KEY (tenant_id, version_id) REFERENCES workflow_versions
);
