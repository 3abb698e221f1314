//! Words: one file per format.
