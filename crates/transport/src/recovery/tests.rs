//! Recovery as a whole.
