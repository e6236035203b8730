-- What one execution of a tenant's blocks may use: NULL where the operator's own limit is enough. They can only narrow it.
ALTER TABLE tenants
    ADD COLUMN memory_bytes_max bigint CHECK (memory_bytes_max > 0),
    ADD COLUMN cpu_ms_max       bigint CHECK (cpu_ms_max > 0),
    ADD COLUMN wall_ms_max      bigint CHECK (wall_ms_max > 0);
