//! All parsers of `/proc` files at once, for the fuzz targets: what they read is the kernel's, but names in it are anybody's.

use super::proc;

/// Gives `bytes` to every parser; what they make of it is dropped.
pub fn parse_all(bytes: &[u8]) {
    let _ = proc::parse_stat(bytes);
    let _ = proc::parse_status(bytes);
    let _ = proc::parse_syscall(bytes).map(|s| (s.call(), s.sp_pc()));
    let _ = proc::parse_auxv(bytes);
    let _ = super::family::parse_parent(bytes);
    let mappings = proc::parse_maps(bytes);
    debug_assert!(mappings.is_sorted_by(|a, b| a.end <= b.start), "mappings overlap");
    let _ = String::from_utf8_lossy(bytes).lines().filter_map(proc::parse_lock).count();
}
