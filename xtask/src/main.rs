//! What the project measures and checks about itself.
fn main() {}
