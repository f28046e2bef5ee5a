//! Verbcast moves data from one node to all others over RDMA verbs or shared memory.
#![forbid(unsafe_code)]
