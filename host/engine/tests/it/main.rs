//! The loops, over a real database and a provider that counts. Blocks are scripts here: the sandbox has its own tests.

mod containers;
mod corpus;
mod faults;
mod house;
mod intake;
mod prepare;
mod rate;
mod runs;
mod share;
mod verify;
mod waits;
