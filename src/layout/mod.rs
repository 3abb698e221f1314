//! The tables of `symbols/`: choose a struct layout or a frame signature, and say where it came from.
