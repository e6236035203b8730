-- What people see of a run. Of an open run only its open steps say where it stands, so that no row has to be written
-- each time that it moves on. What comes from elsewhere is looked up row by row, so that a list follows the index of runs
-- and stops where its page is full.

CREATE VIEW run_rows AS
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
    r.admitted_at, r.ended_at, r.record_id, r.event_id, r.ordinal
FROM runs r
LEFT JOIN LATERAL (
    SELECT bool_or(o.lease_id IS NOT NULL) AS is_held,
        bool_or(o.wait = 'blocked') AND bool_and(o.wait IN ('blocked', 'child')) AS is_blocked,
        bool_or(o.wait = 'ready' OR o.vt <= now()) AS is_due,
        bool_and(o.first_started_at IS NULL) AS is_fresh
    FROM open_steps o WHERE r.state = 'open' AND o.tenant_id = r.tenant_id AND o.run_id = r.id
) s ON true;
