//! Discrete-event simulator: nodes, virtual clock, workloads, packet trace and its hash.
