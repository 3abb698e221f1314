//! Patterns: what kind of mistake a cycle is, why nobody can go on, and what to change. One file each.
//!
//! A pattern looks at a cycle of the graph and at the frames between taking and waiting; it never makes or breaks one.
