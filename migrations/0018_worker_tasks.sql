-- Work that a worker outside the host fetches is an effect like others: its receipt is durable as dispatched before anybody
-- can take it. The task is written together with the receipt, whose id it has, so that nothing is queued twice, and with the
-- letting go of its step, which waits for it. It is taken at most once: a claim names one poll and is never given out again.
--
-- Whether a task may still be taken, and what came of it, its receipt says; the row is kept beside it, so that whoever took the
-- task is known however late the answer comes.

CREATE TABLE worker_tasks (
    tenant_id   uuid        NOT NULL,
    -- That of the receipt.
    id          uuid        NOT NULL,
    step_id     uuid        NOT NULL,
    queue       text        NOT NULL,
    input       json        NOT NULL,
    queued_at   timestamptz NOT NULL DEFAULT now(),
    -- It lies in the queue: turns false when it is taken, is not taken in time, or is withdrawn.
    waiting     boolean     NOT NULL DEFAULT true,
    claim_until timestamptz NOT NULL,
    -- Time for the work, from the claim.
    timeout     interval    NOT NULL CHECK (timeout > interval '0'),
    claim_id    uuid,
    worker      text,
    claimed_at  timestamptz,
    lease_until timestamptz,
    PRIMARY KEY (tenant_id, id),
    CHECK (NOT waiting OR claim_id IS NULL),
    CHECK ((claim_id IS NULL) = (worker IS NULL) AND (claim_id IS NULL) = (claimed_at IS NULL)
        AND (claim_id IS NULL) = (lease_until IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX worker_tasks_waiting ON worker_tasks (tenant_id, queue, queued_at, id) WHERE waiting;
CREATE INDEX worker_tasks_step ON worker_tasks (tenant_id, step_id);
CREATE INDEX worker_tasks_claim ON worker_tasks (tenant_id, claim_id) WHERE claim_id IS NOT NULL;

ALTER TABLE step_attempts DROP CONSTRAINT step_attempts_ended_check;
ALTER TABLE step_attempts ADD CONSTRAINT step_attempts_ended_check
    CHECK (ended IN ('retry', 'lost', 'blocked', 'handed_back', 'queued'));
