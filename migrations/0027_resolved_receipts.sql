-- What somebody else than its answer says of a receipt is no answer, and takes the place of why nothing was known. Until now such
-- a receipt kept the old reason, and had the time of its resolution for the time of an answer; both are in its history.

UPDATE receipts r SET reason = h.evidence, answered_at = NULL
FROM (
    SELECT DISTINCT ON (tenant_id, receipt_id) tenant_id, receipt_id, to_state, actor, evidence
    FROM receipt_history
    WHERE from_state IN ('dispatched', 'unknown') AND to_state <> 'unknown'
    ORDER BY tenant_id, receipt_id, at DESC
) h
WHERE r.tenant_id = h.tenant_id AND r.id = h.receipt_id AND (h.actor <> 'host' OR h.to_state = 'verified');
