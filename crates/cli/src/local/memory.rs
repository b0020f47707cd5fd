//! Whether the machine has memory for so many agents. One that has not would swap, reclaim and spin for
//! minutes before anybody could say why.

use tutti_model::{Bytes, thousands};

use crate::fail::Fail;
use crate::show::count;

/// What an agent and its zygote take of a machine while they are idle, the kernel's part included.
const AGENT: u64 = 8 << 20;
/// The controller, the router, and room to breathe.
const REST: u64 = 256 << 20;

/// Refuses more new agents than there is memory for. What the machine has is not known everywhere.
pub fn check(agents: usize) -> Result<(), Fail> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    available(&meminfo).map_or(Ok(()), |free| fits(agents as u64, free))
}

/// `MemAvailable`, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn fits(agents: u64, free: u64) -> Result<(), Fail> {
    let need = agents.saturating_mul(AGENT).saturating_add(REST);
    if agents <= 1 || need <= free {
        return Ok(());
    }
    let (need, have, each) = (mib(need), mib(free), Bytes(AGENT));
    let most = (free.saturating_sub(REST) / AGENT).max(1);
    Err(Fail::usage(format!(
        "{} need about {need} MiB of memory ({each} each), and {have} MiB are available here",
        count(agents, "node")
    ))
    .hint(format!("--nodes {most} would fit, or stop what else takes memory")))
}

fn mib(bytes: u64) -> String {
    thousands(bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_agents_than_memory_are_refused_with_the_numbers() {
        let meminfo = "MemTotal:       4028412 kB\nMemFree:  12 kB\nMemAvailable:   3145728 kB\n";
        let free = available(meminfo).unwrap();
        assert_eq!(free, 3 << 30);
        assert_eq!((available("MemTotal: 1 kB\n"), available("")), (None, None));
        fits(4, free).unwrap();
        fits(352, free).unwrap();
        let fail = fits(1000, free).unwrap_err();
        assert_eq!(fail.exit, 2);
        assert_eq!(
            fail.message,
            "1,000 nodes need about 8,256 MiB of memory (8MiB each), and 3,072 MiB are available here"
        );
        assert!(fail.hint.unwrap().starts_with("--nodes 352 would fit"));
        fits(1, 0).unwrap();
        assert!(fits(u64::MAX, free).is_err());
    }
}
