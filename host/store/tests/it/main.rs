//! The promises of this room, on a real Postgres.

mod admission;
mod claim;
mod connections;
mod constraints;
mod containers;
mod cost;
mod dispatch;
mod fence;
mod history;
mod intake;
mod keep;
mod own;
mod people;
mod plans;
mod resolution;
mod retention;
mod settle;
mod tenants;
mod timeline;
mod together;
mod transactions;
mod verification;
mod wake;
mod world;
