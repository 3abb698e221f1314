//! Facts → wait-for graph, its components, its cycles.
