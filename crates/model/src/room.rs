//! How much of a disk is left free, and for whom.
//!
//! The output of jobs and the journal may be on one disk. Output stops being written while there is
//! still room for the journal, and new jobs are refused while there is still room for what becomes of
//! those that the cluster has: each has a reserve of its own, and that of the output is the larger.

/// Below this much of free space, nothing more of the jobs' output is written.
pub fn log_reserve(disk: u64) -> u64 {
    (disk / 4).min(1 << 30)
}

/// Below this much of free space, the controller takes no new jobs: what is left is for the events of
/// those that it has, and for a snapshot of the state, which is about as large as the journal.
pub fn journal_reserve(disk: u64, journal: u64) -> u64 {
    (disk / 8).min(journal.clamp(32 << 20, 512 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_stops_before_submissions_do() {
        for shift in 20..50 {
            for disk in [1 << shift, (1 << shift) + 12_345, 3 << shift] {
                for journal in [0, 1 << 20, 100 << 20, 1 << 40] {
                    let (logs, own) = (log_reserve(disk), journal_reserve(disk, journal));
                    assert!(own < logs && logs <= disk / 4, "{disk} {journal}: {own} {logs}");
                }
            }
        }
        assert_eq!(log_reserve(100 << 20), 25 << 20);
        assert_eq!(journal_reserve(100 << 20, 4 << 20), (100 << 20) / 8);
        assert_eq!(journal_reserve(1 << 40, 4 << 20), 32 << 20);
    }
}
