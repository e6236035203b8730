-- The outbox. A domain write and its event commit together; a publisher takes a batch under a hold that runs out by
-- itself, and marks it published when the admission of every binding has committed. Every workflow that an event meets
-- leaves one delivery: the run that it started, or the reason why not.

CREATE TABLE events (
    tenant_id    uuid        NOT NULL REFERENCES tenants,
    id           uuid        NOT NULL,
    type         text        NOT NULL CHECK (length(type) BETWEEN 1 AND 255),
    record_id    text        CHECK (length(record_id) BETWEEN 1 AND 255),
    data         json        NOT NULL,
    recorded_at  timestamptz NOT NULL DEFAULT now(),
    pending      boolean     NOT NULL DEFAULT true,
    hold_id      uuid,
    hold_until   timestamptz,
    published_at timestamptz,
    PRIMARY KEY (tenant_id, id),
    CHECK (pending = (published_at IS NULL)),
    CHECK ((hold_id IS NULL) = (hold_until IS NULL))
) WITH (fillfactor = 70);
CREATE INDEX events_pending ON events (recorded_at) WHERE pending;

CREATE TABLE deliveries (
    tenant_id   uuid        NOT NULL,
    event_id    uuid        NOT NULL,
    workflow_id uuid        NOT NULL,
    version_id  uuid,
    run_id      uuid,
    refusal     text,
    detail      text        NOT NULL DEFAULT '',
    at          timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, event_id, workflow_id),
    CHECK ((run_id IS NULL) <> (refusal IS NULL))
);
CREATE INDEX deliveries_refused ON deliveries (tenant_id, at DESC) WHERE refusal IS NOT NULL;

-- An application that shares the database records an event in its own transaction.
CREATE SCHEMA IF NOT EXISTS counterfoil;
CREATE FUNCTION counterfoil.emit_event(tenant uuid, event_type text, data jsonb, record_id text DEFAULT NULL)
RETURNS uuid LANGUAGE sql AS $$
    INSERT INTO public.events (tenant_id, id, type, record_id, data)
    VALUES (tenant, gen_random_uuid(), event_type, record_id, data::json)
    RETURNING id
$$;
