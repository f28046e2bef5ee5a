//! Bootstrap, registered memory and links of Verbcast.
