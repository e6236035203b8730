-- A run's timeline is read a page at a time, in the order of its plan: node by node, and the iterations of each. A step is one
-- node in one iteration, so that these say as much as its id did, and the table has one index as before.

ALTER TABLE settled_steps DROP CONSTRAINT settled_steps_pkey, ADD PRIMARY KEY (tenant_id, run_id, node, iteration);
