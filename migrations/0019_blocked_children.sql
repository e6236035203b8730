-- A run is blocked when one of its steps is, or waits for a run that is, and nothing else can move: neither another step of
-- it, nor any step of the runs that it waits for, however deep.

CREATE OR REPLACE VIEW run_rows AS
SELECT r.tenant_id, r.id, r.lineage, r.workflow_id,
    (SELECT w.name FROM workflows w WHERE w.tenant_id = r.tenant_id AND w.id = r.workflow_id) AS workflow_name,
    (SELECT v.number FROM workflow_versions v WHERE v.tenant_id = r.tenant_id AND v.id = r.version_id) AS version,
    CASE
        WHEN r.state <> 'open' THEN r.state
        WHEN s.is_held THEN 'running'
        -- Only such a run is worth a look at those below it.
        WHEN s.is_still AND (
            WITH RECURSIVE below AS (
                SELECT r.id AS run_id
                UNION
                SELECT w.name::uuid FROM below
                JOIN waits w ON w.tenant_id = r.tenant_id AND w.run_id = below.run_id AND w.kind = 'child'
            )
            SELECT bool_or(o.wait = 'blocked') AND bool_and(o.wait IN ('blocked', 'child') AND o.lease_id IS NULL)
            FROM below JOIN open_steps o ON o.tenant_id = r.tenant_id AND o.run_id = below.run_id
        ) THEN 'blocked'
        WHEN NOT s.is_due THEN 'waiting'
        WHEN s.is_fresh AND NOT EXISTS (
            SELECT FROM settled_steps d WHERE d.tenant_id = r.tenant_id AND d.run_id = r.id) THEN 'pending'
        ELSE 'running'
    END AS state,
    r.admitted_at, r.ended_at, r.record_id, r.event_id, r.ordinal, r.parent_run_id
FROM runs r
LEFT JOIN LATERAL (
    SELECT bool_or(o.lease_id IS NOT NULL) AS is_held,
        bool_and(o.wait IN ('blocked', 'child')) AS is_still,
        bool_or(o.wait = 'ready' OR o.vt <= now()) AS is_due,
        bool_and(o.first_started_at IS NULL) AS is_fresh
    FROM open_steps o WHERE r.state = 'open' AND o.tenant_id = r.tenant_id AND o.run_id = r.id
) s ON true;
