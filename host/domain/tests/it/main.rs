//! What holds of the domain as a whole.

mod model;
