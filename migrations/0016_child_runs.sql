-- A run may be started by a step of another, which waits for it or not. The child's end and the wake-up of the step are one
-- transaction. When a step that waits is cancelled, its child is to be cancelled too: that is kept here, and done by
-- itself, since whoever holds the parent's lock must not wait for the child's.

ALTER TABLE runs DROP CONSTRAINT runs_trigger_check;
ALTER TABLE runs ADD CONSTRAINT runs_trigger_check CHECK (trigger IN ('api', 'event', 'run'));
ALTER TABLE runs ADD COLUMN parent_run_id uuid;
ALTER TABLE runs ADD COLUMN parent_step_id uuid;
-- Runs above it.
ALTER TABLE runs ADD COLUMN depth int NOT NULL DEFAULT 0 CHECK (depth >= 0);
ALTER TABLE runs ADD CONSTRAINT runs_parent_check
    CHECK ((trigger = 'run') = (parent_run_id IS NOT NULL) AND (parent_run_id IS NULL) = (parent_step_id IS NULL));

CREATE TABLE due_cancels (
    tenant_id uuid        NOT NULL,
    run_id    uuid        NOT NULL,
    since     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, run_id)
);

CREATE OR REPLACE VIEW run_rows AS
SELECT r.tenant_id, r.id, r.lineage, r.workflow_id,
    (SELECT w.name FROM workflows w WHERE w.tenant_id = r.tenant_id AND w.id = r.workflow_id) AS workflow_name,
    (SELECT v.number FROM workflow_versions v WHERE v.tenant_id = r.tenant_id AND v.id = r.version_id) AS version,
    CASE
        WHEN r.state <> 'open' THEN r.state
        WHEN s.is_held THEN 'running'
        -- Nothing else can move by itself.
        WHEN s.is_blocked THEN 'blocked'
        WHEN NOT s.is_due THEN 'waiting'
        WHEN s.is_fresh AND NOT EXISTS (
            SELECT FROM settled_steps d WHERE d.tenant_id = r.tenant_id AND d.run_id = r.id) THEN 'pending'
        ELSE 'running'
    END AS state,
    r.admitted_at, r.ended_at, r.record_id, r.event_id, r.ordinal, r.parent_run_id
FROM runs r
LEFT JOIN LATERAL (
    SELECT bool_or(o.lease_id IS NOT NULL) AS is_held,
        bool_or(o.wait = 'blocked') AND bool_and(o.wait IN ('blocked', 'child')) AS is_blocked,
        bool_or(o.wait = 'ready' OR o.vt <= now()) AS is_due,
        bool_and(o.first_started_at IS NULL) AS is_fresh
    FROM open_steps o WHERE r.state = 'open' AND o.tenant_id = r.tenant_id AND o.run_id = r.id
) s ON true;
