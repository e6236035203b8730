-- A receipt is durable before the first byte of its effect leaves, and is updated once, by its answer.
--
-- The id is a digest of the slot and the dispatch number, so that a crash, a retry, a second host and a replay meet the
-- same row. `guarded AND NOT released` is what stands in the way of the same content being sent again: both booleans move
-- only on rare paths, and neither the state nor any answer column is in an index, so that the answer is a HOT update.
-- A receipt whose outcome is open to a person is `unresolved`, for the same reason a boolean of its own.
-- History holds every move of whatever was ever unknown.

CREATE TABLE receipts (
    tenant_id           uuid        NOT NULL,
    id                  uuid        NOT NULL,
    lineage             uuid        NOT NULL,
    run_id              uuid        NOT NULL,
    step_id             uuid        NOT NULL,
    epoch               bigint      NOT NULL,
    node                text        NOT NULL,
    iteration           int[]       NOT NULL,
    slot_label          text,
    slot_ordinal        bigint,
    dispatch_number     bigint      NOT NULL CHECK (dispatch_number >= 0),
    position            int         NOT NULL CHECK (position >= 0),
    attempt             int         NOT NULL,
    kind                text        NOT NULL CHECK (kind IN ('http', 'emit', 'storage', 'mail', 'model', 'worker')),
    safety              text        NOT NULL CHECK (safety IN ('at-most-once', 'idempotent', 'read-only')),
    connection          text,
    destination         bytea       NOT NULL CHECK (length(destination) = 32),
    request_hash        bytea       NOT NULL CHECK (length(request_hash) = 32),
    content_key         bytea       NOT NULL CHECK (length(content_key) = 16),
    idempotency_key     text        NOT NULL,
    preview             json        NOT NULL,
    state               text        NOT NULL CHECK (state IN ('planned', 'prepared', 'dispatched', 'committed', 'rejected',
                                                              'unknown', 'verified', 'compensated', 'abandoned')),
    lease_id            uuid,
    guarded             boolean     NOT NULL DEFAULT false,
    released            boolean     NOT NULL DEFAULT false,
    unresolved          boolean     NOT NULL DEFAULT false,
    prepared_at         timestamptz NOT NULL DEFAULT now(),
    dispatched_at       timestamptz,
    -- From then on the request can no longer arrive, so that its absence can be known.
    absence_known_at    timestamptz,
    answered_at         timestamptz,
    answer_kind         text,
    answer_status       int,
    answer_headers      json,
    -- Bytes, or text as UTF-8.
    answer_body         bytea,
    answer_truncated    boolean,
    reason              text,
    provider_receipt_id text,
    PRIMARY KEY (tenant_id, id),
    CHECK ((slot_label IS NULL) <> (slot_ordinal IS NULL)),
    CHECK (unresolved = (state = 'unknown')),
    CHECK (state IN ('planned', 'prepared', 'rejected', 'abandoned') OR dispatched_at IS NOT NULL OR safety = 'read-only'),
    CHECK (state NOT IN ('dispatched', 'unknown') OR (lease_id IS NOT NULL AND absence_known_at IS NOT NULL)),
    CHECK (state NOT IN ('dispatched', 'unknown') OR safety <> 'read-only'),
    CHECK (state NOT IN ('committed', 'verified', 'rejected') OR answer_kind IS NOT NULL),
    CHECK (state NOT IN ('planned', 'prepared', 'dispatched') OR answer_kind IS NULL),
    CHECK (NOT guarded OR (dispatched_at IS NOT NULL AND safety <> 'read-only')),
    CHECK (NOT released OR (guarded AND state IN ('rejected', 'abandoned', 'compensated')))
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0);
CREATE UNIQUE INDEX receipts_guard ON receipts (tenant_id, content_key) WHERE guarded AND NOT released;
CREATE INDEX receipts_place ON receipts (tenant_id, lineage, node, iteration);
CREATE INDEX receipts_unresolved ON receipts (tenant_id, prepared_at, id) WHERE unresolved;

CREATE TABLE receipt_history (
    tenant_id  uuid        NOT NULL,
    receipt_id uuid        NOT NULL,
    id         uuid        NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    from_state text        NOT NULL,
    to_state   text        NOT NULL,
    actor      text        NOT NULL,
    evidence   text        NOT NULL,
    PRIMARY KEY (tenant_id, receipt_id, id)
);

-- What an invariant decided, with the receipt that stood in the way.
CREATE TABLE invariant_results (
    tenant_id     uuid        NOT NULL,
    id            uuid        NOT NULL,
    at            timestamptz NOT NULL DEFAULT now(),
    invariant_id  text        NOT NULL,
    run_id        uuid        NOT NULL,
    step_id       uuid        NOT NULL,
    content_key   bytea       NOT NULL,
    held_by       uuid        NOT NULL,
    PRIMARY KEY (tenant_id, id)
);
