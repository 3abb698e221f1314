//! The `hangscope` program.

fn main() {}
