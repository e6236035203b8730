-- The tables of what is open are empty again and again. A plan that is made then, and kept, takes any index that its statement could
-- use at all, since all look equally cheap: a step was looked for by its key among all steps of its tenant. These serve only
-- statements that name what they are for; what is looked for by its key is found by its key.

DROP INDEX open_steps_due;
CREATE INDEX open_steps_due ON open_steps (tenant_id, workflow_id, vt) WHERE workflow_id IS NOT NULL;
DROP INDEX open_steps_run;
CREATE INDEX open_steps_run ON open_steps (tenant_id, run_id) WHERE run_id IS NOT NULL;

ALTER TABLE open_runs DROP CONSTRAINT open_runs_tenant_id_lineage_key;
CREATE UNIQUE INDEX open_runs_lineage ON open_runs (tenant_id, lineage) WHERE lineage IS NOT NULL;
