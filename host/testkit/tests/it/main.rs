mod cluster;
mod postgres;
