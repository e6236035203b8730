-- Whether a component can be asked what became of an effect is read off its bytes once, when they are kept.
--
-- An unknown receipt whose block can be asked has a row here, written by the move that made it unknown and deleted by the
-- move that ends that. `due_at` is the only time: when the block is asked next, or, while a host asks it, when the hold
-- runs out and another may; infinity once it is left to a person. A hold id names one asking and is never reused.

ALTER TABLE components ADD COLUMN verifies boolean NOT NULL DEFAULT false;

CREATE TABLE verifications (
    tenant_id  uuid        NOT NULL,
    receipt_id uuid        NOT NULL,
    block      bytea       NOT NULL CHECK (length(block) = 32),
    due_at     timestamptz NOT NULL,
    hold_id    uuid,
    asked      int         NOT NULL DEFAULT 0 CHECK (asked >= 0),
    asked_at   timestamptz,
    said       text,
    PRIMARY KEY (tenant_id, receipt_id),
    CHECK (hold_id IS NULL OR (asked > 0 AND asked_at IS NOT NULL AND due_at <> 'infinity'))
);
CREATE INDEX verifications_due ON verifications (tenant_id, due_at);
