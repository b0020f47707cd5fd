//! The kernel's text files. What does not have the expected form is passed over.

use tutti_model::Bytes;

/// Ticks of all processors together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTimes {
    busy: u64,
    idle: u64,
}

impl CpuTimes {
    pub fn busy_since(self, before: CpuTimes) -> f32 {
        let busy = self.busy.saturating_sub(before.busy);
        let idle = self.idle.saturating_sub(before.idle);
        if busy + idle == 0 { 0.0 } else { busy as f32 / (busy + idle) as f32 }
    }
}

/// "cpu  user nice system idle iowait irq softirq steal guest guest_nice"; guests are in user.
pub fn cpu(stat: &str) -> Option<CpuTimes> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_ascii_whitespace().filter_map(|t| t.parse().ok()).collect();
    let &[user, nice, system, idle, ref rest @ ..] = ticks.as_slice() else { return None };
    let of = |at: usize| rest.get(at).copied().unwrap_or(0);
    let (iowait, irq, softirq, steal) = (of(0), of(1), of(2), of(3));
    Some(CpuTimes { busy: user + nice + system + irq + softirq + steal, idle: idle + iowait })
}

pub fn load(loadavg: &str) -> f32 {
    loadavg.split_ascii_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// Total and available.
pub fn memory(meminfo: &str) -> (Bytes, Bytes) {
    let of = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok());
        Bytes(kib.unwrap_or(0u64) * 1024)
    };
    (of("MemTotal:"), of("MemAvailable:"))
}

/// Bytes in and out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub rx: u64,
    pub tx: u64,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.rx += other.rx;
        self.tx += other.tx;
    }
}

/// The kernel counts sectors of this size, whatever the disk has.
const SECTOR: u64 = 512;

/// "259 0 nvme0n1 reads merged sectors ms writes merged sectors ms ...".
pub fn disks(diskstats: &str) -> impl Iterator<Item = (&str, Traffic)> {
    diskstats.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(2);
        let name = words.next()?;
        let read: u64 = words.nth(2)?.parse().ok()?;
        let written: u64 = words.nth(3)?.parse().ok()?;
        Some((name, Traffic { rx: read * SECTOR, tx: written * SECTOR }))
    })
}

/// "  eth0: rx_bytes packets errs drop fifo frame compressed multicast tx_bytes ...".
pub fn interfaces(dev: &str) -> impl Iterator<Item = (&str, Traffic)> {
    dev.lines().filter_map(|line| {
        let (name, counts) = line.split_once(':')?;
        let mut counts = counts.split_ascii_whitespace();
        let rx = counts.next()?.parse().ok()?;
        let tx = counts.nth(7)?.parse().ok()?;
        Some((name.trim(), Traffic { rx, tx }))
    })
}
