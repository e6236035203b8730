-- Publishers take the events of the tenants in turns: each tenant's pending ones, the oldest first.
CREATE INDEX events_pending_of_tenant ON events (tenant_id, recorded_at) WHERE pending;
DROP INDEX events_pending;
