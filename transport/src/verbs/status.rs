//! Work completion statuses for people: what `ibv_wc_status` names mean and what to do.

/// Name of an `ibv_wc_status` (ibv_poll_cq(3)) and what usually helps.
pub(crate) fn describe(status: u32) -> (&'static str, &'static str) {
    const BUG: &str = "an error of this program or of the provider: please report it";
    const PEER: &str = "the peer deregistered the memory, or the two sides do not agree on it";
    match status {
        0 => ("SUCCESS", "nothing to do"),
        1 => ("LOC_LEN_ERR", BUG),
        2 => ("LOC_QP_OP_ERR", BUG),
        4 => ("LOC_PROT_ERR", BUG),
        5 => (
            "WR_FLUSH_ERR",
            "the queue pair went to error before: the peer wrote where it must not, or the device \
             failed; see the other ranks' errors and the kernel log",
        ),
        6 => ("MW_BIND_ERR", BUG),
        7 => ("BAD_RESP_ERR", "the peer's adapter answered nonsense: check its firmware"),
        8 => ("LOC_ACCESS_ERR", BUG),
        9 => ("REM_INV_REQ_ERR", "the peer's queue pair takes no such request"),
        10 => ("REM_ACCESS_ERR", PEER),
        11 => ("REM_OP_ERR", "the peer's adapter could not do it: see its kernel log"),
        12 => (
            "RETRY_EXC_ERR",
            "the peer is gone or the path to it is broken: see whether its process lives, check \
             its port, the GIDs (`verbcast devices`) and, on RoCE, that UDP port 4791 is open; on \
             slow or lossy links raise VERBCAST_TIMEOUT",
        ),
        13 => ("RNR_RETRY_EXC_ERR", "the peer had no receive posted: please report it"),
        15 => ("REM_INV_RD_REQ_ERR", BUG),
        16 => ("REM_ABORT_ERR", "the peer aborted the request: see its errors"),
        19 => ("FATAL_ERR", "the device failed: see the kernel log"),
        20 => ("RESP_TIMEOUT_ERR", "the peer's adapter did not answer in time: check the path"),
        21 => ("GENERAL_ERR", "the device failed: see the kernel log"),
        _ => ("unknown status", "see ibv_wc_status in the provider's headers"),
    }
}
