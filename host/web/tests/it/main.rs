//! The promises of this room, over its router and a real Postgres.

mod approvals;
mod blocks;
mod connections;
mod effects;
mod events;
mod keys;
mod limits;
mod operations;
mod pages;
mod runs;
mod scopes;
mod sessions;
mod tenants;
mod told;
mod workflows;
mod world;
