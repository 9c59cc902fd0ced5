//! The model of a network path: packet and time in, packet and time out.
