//! The only door out, tested over real sockets and a real database.

mod client;
mod guard;
