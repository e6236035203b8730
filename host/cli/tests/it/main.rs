//! The real program, from its command line to its exit code.

mod agreement;
mod block_test;
mod browser;
mod configuration;
mod crash_walk;
mod definition;
mod host;
mod operating;
mod own_effects;
mod program;
mod safeties;
mod secrets;
mod stopping;
mod tenant_limits;
mod usage;
mod verify;
mod worker;
mod world;
