//! QUIC on the wire: varints, packet headers, frames, transport parameters. Bytes to values and back, nothing that waits.
