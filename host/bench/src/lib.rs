//! The benchmarks and the common workload.
