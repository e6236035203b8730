-- Events with what came of them, the answers that are kept for requests, and the audit go when they are past a time that the
-- operator names, each for itself, oldest first. A round goes through what is past its time once; what must stay longer (an
-- event whose run is there) is passed over, and met again by the next round.

CREATE TABLE pruning_rounds (
    what     text        PRIMARY KEY CHECK (what IN ('events', 'requests', 'audit')),
    -- When its next page is due.
    due_at   timestamptz NOT NULL DEFAULT now(),
    -- The row that this round looked at last; none between two rounds.
    after_at timestamptz,
    after_id uuid,
    begun_at timestamptz NOT NULL DEFAULT now(),
    -- What was past its time then is gone.
    clean_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((after_at IS NULL) = (after_id IS NULL))
) WITH (fillfactor = 50);

-- In the order of time, of all tenants together: who has nothing that is old costs nothing. An event comes into its index once,
-- when it is published.
CREATE INDEX events_old ON events (recorded_at, id) WHERE NOT pending;
CREATE INDEX idempotent_requests_old ON idempotent_requests (begun_at);
CREATE INDEX audit_old ON audit (at, id);
