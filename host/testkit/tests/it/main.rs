mod cluster;
mod postgres;
mod usage;
