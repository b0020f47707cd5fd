//! How many descriptors the system gives this process, and what follows from that.

use crate::config::ServerLimits;

/// For the listener, probes, files and event loops.
const OWN: usize = 64;

/// No more connections and requests than there are descriptors for: half for clients, half for replicas. A
/// router whose clients held all of them could reach no replica, and would think them all dead.
pub fn within(limits: ServerLimits, descriptors: Option<usize>) -> ServerLimits {
    let Some(descriptors) = descriptors else { return limits };
    let half = (descriptors.saturating_sub(OWN) / 2).max(1);
    if half < limits.connections {
        tracing::warn!(
            descriptors,
            connections = half,
            "the limit of open files allows for fewer connections: raise it (ulimit -n)"
        );
    }
    ServerLimits {
        connections: limits.connections.min(half),
        requests: limits.requests.min(half),
        ..limits
    }
}

/// None where the system does not say, or has no limit.
pub fn available() -> Option<usize> {
    soft_limit(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

fn soft_limit(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_descriptors_are_for_replicas() {
        let limits = |descriptors| {
            let limits = within(ServerLimits::default(), descriptors);
            (limits.connections, limits.requests)
        };
        assert_eq!(limits(Some(1024)), (480, 480));
        assert_eq!(limits(Some(30_000)), (10_000, 14_968));
        assert_eq!(limits(Some(10)), (1, 1));
        assert_eq!(limits(None), (10_000, 20_000));
    }

    #[test]
    fn the_limit_is_read_from_what_the_system_says() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
            Max processes             94205                94205                processes\n\
            Max open files            1024                 524288               files\n";
        assert_eq!(soft_limit(text), Some(1024));
        assert_eq!(soft_limit(&text.replace("1024", "unlimited")), None);
        assert!(available().is_some_and(|n| n > 0), "it says so here");
    }
}
