-- A finished run is kept for as long as the operator says, and then forgotten: its row goes first, in one transaction with what
-- must outlive it, so that from then on it answers like one that never was. What hangs on it goes afterwards, a bounded number
-- of rows at a time; `forgotten_runs` says which of it is left, and stays beside receipts that guard still.
--
-- A walk goes through a tenant's runs in the order of their ids, which is that of time: an index by the time of the end would
-- make every end of a run dearer.

ALTER TABLE tenants ADD COLUMN keep_runs_days int CHECK (keep_runs_days > 0);

CREATE TABLE retention_walks (
    tenant_id uuid        PRIMARY KEY REFERENCES tenants,
    -- When its next page is due.
    due_at    timestamptz NOT NULL DEFAULT now(),
    -- The run that this walk looked at last; none between two walks.
    after     uuid,
    begun_at  timestamptz NOT NULL DEFAULT now(),
    -- What was past its time then is forgotten.
    clean_at  timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
CREATE INDEX retention_walks_due ON retention_walks (due_at);

CREATE TABLE forgotten_runs (
    tenant_id    uuid        NOT NULL,
    lineage      uuid        NOT NULL,
    run_id       uuid        NOT NULL,
    workflow_id  uuid        NOT NULL,
    forgotten_at timestamptz NOT NULL DEFAULT now(),
    -- Nothing is left of it but receipts that must stay.
    is_clear     boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, lineage, run_id)
);
CREATE INDEX forgotten_runs_left ON forgotten_runs (forgotten_at) WHERE NOT is_clear;

-- Records that have had a run of a workflow, for triggers that start one once a record.
CREATE TABLE forgotten_records (
    tenant_id   uuid NOT NULL,
    workflow_id uuid NOT NULL,
    record_id   text NOT NULL,
    PRIMARY KEY (tenant_id, workflow_id, record_id)
);

-- The runs of a lineage beside the one that gave it its name: few.
CREATE INDEX runs_lineage ON runs (tenant_id, lineage) WHERE lineage <> id;
CREATE INDEX invariant_results_run ON invariant_results (tenant_id, run_id);

-- The key of a content that is allowed once in its lineage, and so guards nothing once that is gone.
CREATE FUNCTION counterfoil.lineage_content_key(lineage uuid, kind text, destination bytea, request_hash bytea)
RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(sha256(
        'counterfoil-content-v1\000'::bytea || int4send(7) || 'lineage'::bytea || int4send(16) || uuid_send(lineage)
        || int4send(octet_length(kind)) || convert_to(kind, 'UTF8')
        || int4send(octet_length(destination)) || destination
        || int4send(octet_length(request_hash)) || request_hash) FROM 1 FOR 16)
$$;
