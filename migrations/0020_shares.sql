-- Open steps wait in one line a workflow, so that a host takes from each as much as its workflow and its tenant may have,
-- and looks at no step that it must leave.
--
-- A weight says how much of a host's room a tenant gets while others have work due too, and a workflow beside the others
-- of its tenant; a cap is what it has in flight at most, on each host.

ALTER TABLE open_steps ADD COLUMN workflow_id uuid;
UPDATE open_steps s SET workflow_id = r.workflow_id
FROM open_runs r WHERE r.tenant_id = s.tenant_id AND r.run_id = s.run_id;
ALTER TABLE open_steps ALTER COLUMN workflow_id SET NOT NULL;
DROP INDEX open_steps_due;
CREATE INDEX open_steps_due ON open_steps (tenant_id, workflow_id, vt);

ALTER TABLE tenants ADD COLUMN weight int NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 1000);
ALTER TABLE tenants ADD COLUMN in_flight_max int CHECK (in_flight_max > 0);
ALTER TABLE workflows ADD COLUMN weight int NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 1000);
ALTER TABLE workflows ADD COLUMN in_flight_max int CHECK (in_flight_max > 0);
-- Hosts read every one that is not as it was made, once a second.
CREATE INDEX tenants_share ON tenants (id) WHERE weight <> 1 OR in_flight_max IS NOT NULL;
CREATE INDEX workflows_share ON workflows (tenant_id, id) WHERE weight <> 1 OR in_flight_max IS NOT NULL;
