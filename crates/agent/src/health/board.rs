//! The findings that stand. Pure: the time is an argument.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tutti_gpu::health::judge::judge;
use tutti_gpu::health::{Addresses, Keep, Seen};
use tutti_model::{Finding, GpuIndex, HealthAction, Span, Time};

use super::KernelEntry;

/// Errors of one program come at shorter intervals than this.
const FLOOD_ENDS: Span = Span::secs(2);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Board {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    finding: Finding,
    keep: Keep,
    /// When it was last seen.
    seen: Time,
}

impl Board {
    /// In the order of their keys.
    pub fn findings(&self) -> Vec<Finding> {
        self.entries.values().map(|e| e.finding.clone()).collect()
    }

    /// Something was seen, for the first time or again.
    pub fn put(&mut self, seen: Seen) {
        let Seen { finding, keep } = seen;
        let new = Entry { seen: finding.since, finding, keep };
        match self.entries.get_mut(&new.finding.key) {
            Some(old) => old.again(new),
            None => drop(self.entries.insert(new.finding.key.clone(), new)),
        }
    }

    /// What the kernel's log says of GPUs at these addresses, in its order.
    pub fn kernel_said(&mut self, entries: &[KernelEntry], addresses: &Addresses) {
        for entry in entries {
            let verdict = judge(&entry.event, addresses, entry.at);
            self.overrule(&verdict.overruled);
            verdict.seen.into_iter().for_each(|seen| self.put(seen));
        }
    }

    /// The driver said itself what these GPUs need: what the table made of their errors goes.
    fn overrule(&mut self, gpus: &[GpuIndex]) {
        self.entries.retain(|_, e| {
            let of_table = e.finding.check == "xid" && !e.finding.drill;
            let fences = e.finding.fences().is_some_and(|gpu| gpus.contains(&gpu));
            !(of_table && fences)
        });
    }

    /// What was not seen for long enough goes.
    pub fn expire(&mut self, now: Time) {
        self.entries.retain(|_, e| e.ends_at().is_none_or(|at| at > now));
    }

    /// Nobody could look for a while: these stand as if they were seen now.
    pub fn renew(&mut self, now: Time, meant: impl Fn(&Finding) -> bool) {
        for entry in self.entries.values_mut().filter(|e| meant(&e.finding)) {
            entry.seen = entry.seen.max(now);
        }
    }

    /// When the next one goes by itself.
    pub fn next_end(&self) -> Option<Time> {
        self.entries.values().filter_map(Entry::ends_at).min()
    }

    /// The machine was started anew: whatever a reset or a reboot mends is mended.
    pub fn rebooted(&mut self) {
        self.entries.retain(|_, e| e.keep == Keep::UntilResolved);
    }

    /// Takes away those that are meant; returns them.
    pub fn resolve(&mut self, meant: impl Fn(&Finding) -> bool) -> Vec<Finding> {
        let gone: Vec<Finding> =
            self.entries.values().map(|e| &e.finding).filter(|f| meant(f)).cloned().collect();
        self.entries.retain(|_, e| !meant(&e.finding));
        gone
    }
}

impl Entry {
    fn ends_at(&self) -> Option<Time> {
        match self.keep {
            Keep::For(span) => Some(self.seen.plus(span)),
            Keep::UntilReboot | Keep::UntilResolved => None,
        }
    }

    /// The same thing was seen again. Its beginning stays, and with it its text, unless it is worse
    /// now. What only lasts while it is seen may get better, too. An error that restarts a job is a
    /// new one each time; those that programs bring about come in floods and restart nobody. After a pause
    /// it is another program's flood.
    fn again(&mut self, new: Entry) {
        let heals = matches!(self.keep, Keep::For(_));
        let each_counts = new.finding.action == HealthAction::RestartJob
            && self.finding.action == HealthAction::RestartJob
            && new.finding.since > self.finding.since
            && !new.finding.by_job;
        let another_flood = new.finding.check == "xid"
            && new.finding.action <= HealthAction::RestartJob
            && new.finding.action == self.finding.action
            && new.finding.since.since(self.seen) > FLOOD_ENDS;
        let differs = new.finding.action != self.finding.action || new.keep != self.keep;
        if each_counts
            || another_flood
            || new.finding.action > self.finding.action
            || (heals && differs)
        {
            *self = new;
        } else {
            self.seen = self.seen.max(new.seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(key: &str, gpu: u16, action: HealthAction, keep: Keep, at: u64) -> Seen {
        let finding = Finding {
            key: key.into(),
            check: key.split(['-', '/']).next().unwrap().into(),
            gpu: Some(GpuIndex(gpu)),
            action,
            text: format!("at {at}"),
            since: Time(at),
            drill: false,
            by_job: false,
        };
        Seen { finding, keep }
    }

    fn keys(board: &Board) -> Vec<String> {
        board.findings().into_iter().map(|f| f.key).collect()
    }

    const MINUTE: Keep = Keep::For(Span::secs(60));

    #[test]
    fn what_is_seen_stands_for_a_while_and_begins_where_it_began() {
        let mut board = Board::default();
        board.put(seen("throttle/gpu0", 0, HealthAction::Note, MINUTE, 1000));
        board.put(seen("throttle/gpu0", 0, HealthAction::Note, MINUTE, 50_000));
        assert_eq!(board.findings()[0].since, Time(1000));
        assert_eq!(board.findings()[0].text, "at 1000", "other figures are no news");
        board.expire(Time(100_000));
        assert_eq!(board.next_end(), Some(Time(110_000)));
        board.expire(Time(110_000));
        assert!(board.findings().is_empty());
    }

    #[test]
    fn what_nobody_could_look_at_stands_for_as_long_again() {
        let mut board = Board::default();
        board.put(seen("memory-held/gpu0", 0, HealthAction::ResetGpu, MINUTE, 1000));
        board.put(seen("throttle/gpu0", 0, HealthAction::Note, MINUTE, 1000));
        board.renew(Time(500_000), |f| f.key == "memory-held/gpu0");
        board.expire(Time(500_000));
        assert_eq!(keys(&board), ["memory-held/gpu0"]);
        assert_eq!(
            (board.findings()[0].since, board.next_end()),
            (Time(1000), Some(Time(560_000)))
        );
    }

    #[test]
    fn what_gets_worse_is_said_and_what_heals_gets_better() {
        let mut board = Board::default();
        let action = |board: &Board| board.findings()[0].action;
        board.put(seen("disk", 0, HealthAction::Note, MINUTE, 0));
        board.put(seen("disk", 0, HealthAction::DrainNode, MINUTE, 10));
        assert_eq!(
            (action(&board), board.findings()[0].since),
            (HealthAction::DrainNode, Time(10))
        );
        board.put(seen("disk", 0, HealthAction::Note, MINUTE, 20));
        assert_eq!(action(&board), HealthAction::Note);
        // What stands until somebody looks does not.
        board.put(seen("ecc/gpu0", 0, HealthAction::FenceGpu, Keep::UntilReboot, 30));
        board.put(seen("ecc/gpu0", 0, HealthAction::Note, MINUTE, 40));
        board.expire(Time(u64::MAX));
        assert_eq!(
            (keys(&board), action(&board)),
            (vec!["ecc/gpu0".into()], HealthAction::FenceGpu)
        );
    }

    #[test]
    fn each_error_that_restarts_a_job_is_a_new_one() {
        let mut board = Board::default();
        for at in [10, 20] {
            board.put(seen("xid-94/gpu0", 0, HealthAction::RestartJob, MINUTE, at));
            assert_eq!(board.findings()[0].since, Time(at));
        }
        for at in [10, 20] {
            let mut own = seen("xid-13/gpu0", 0, HealthAction::RestartJob, MINUTE, at);
            own.finding.by_job = true;
            board.put(own);
            assert_eq!(board.findings()[0].since, Time(10), "a flood is one");
        }
        let mut next = seen("xid-13/gpu0", 0, HealthAction::RestartJob, MINUTE, 2_021);
        next.finding.by_job = true;
        board.put(next);
        assert_eq!(board.findings()[0].since, Time(2_021), "another program's");
    }

    #[test]
    fn the_drivers_word_replaces_what_the_table_said() {
        let mut board = Board::default();
        board.put(seen("xid-79/gpu0", 0, HealthAction::RebootNode, Keep::UntilReboot, 0));
        board.put(seen("xid-13/gpu0", 0, HealthAction::RestartJob, MINUTE, 0));
        board.put(seen("xid-79/gpu1", 1, HealthAction::RebootNode, Keep::UntilReboot, 0));
        board.put(seen("ecc/gpu0", 0, HealthAction::FenceGpu, Keep::UntilReboot, 0));
        board.overrule(&[GpuIndex(0)]);
        assert_eq!(keys(&board), ["ecc/gpu0", "xid-13/gpu0", "xid-79/gpu1"]);
    }

    #[test]
    fn the_kernels_log_is_taken_in_its_order() {
        use tutti_gpu::health::klog;
        let entry =
            |text: &str, at| KernelEntry { event: klog::parse(text).unwrap(), at: Time(at) };
        let mut addresses = Addresses::default();
        addresses.add("0000:9c:00.0", GpuIndex(4));
        let mut board = Board::default();
        let broken = entry("NVRM: Xid (PCI:0000:9c:00): 95, pid=1, name=x", 10);
        let mended = entry(
            "NVRM: Xid (PCI:0000:9c:00): 154, GPU recovery action changed from 0x1 (GPU Reset \
             Required) to 0x0 (None)",
            20,
        );
        board.kernel_said(&[broken.clone(), mended.clone()], &addresses);
        assert_eq!(keys(&board), Vec::<String>::new());
        board.kernel_said(&[mended, broken], &addresses);
        assert_eq!(keys(&board), ["xid-95/gpu4"]);
    }

    #[test]
    fn a_reboot_mends_and_an_operator_resolves() {
        let mut board = Board::default();
        board.put(seen("xid-79/gpu0", 0, HealthAction::RebootNode, Keep::UntilReboot, 0));
        board.put(seen("xid-48/gpu0", 0, HealthAction::FenceGpu, Keep::UntilResolved, 0));
        board.put(seen("xid-48/gpu1", 1, HealthAction::FenceGpu, Keep::UntilResolved, 0));
        board.rebooted();
        assert_eq!(keys(&board), ["xid-48/gpu0", "xid-48/gpu1"]);
        assert_eq!(board.resolve(|f| f.gpu == Some(GpuIndex(0))).len(), 1);
        assert_eq!(board.resolve(|f| f.key == "xid-48/gpu7").len(), 0);
        assert_eq!(board.resolve(|f| f.key == "xid-48/gpu1").len(), 1);
        assert!(board.findings().is_empty());
    }
}
