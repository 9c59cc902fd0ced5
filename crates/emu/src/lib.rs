//! The links of netem in real time.
