//! Which CPUs a part is pinned to: near its GPUs, whole cores, and nobody else's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub type Cpus = BTreeSet<u32>;

/// "0-3,8" as the kernel writes it; none if it is something else.
pub fn parse(text: &str) -> Option<Cpus> {
    let mut cpus = Cpus::new();
    for piece in text.trim().split(',').filter(|piece| !piece.is_empty()) {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        // More than any machine has is not a list of CPUs.
        if last < first || last > 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// As the kernel reads it.
pub fn text(cpus: &Cpus) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let piece = |&(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(piece).collect::<Vec<_>>().join(",")
}

/// What CPUs a machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub all: Cpus,
    /// The first CPU of the core that each one belongs to; itself where that is not known.
    cores: BTreeMap<u32, u32>,
}

impl Machine {
    /// `root` is `/`, or a recorded tree.
    pub fn look(root: &Path, all: Cpus) -> Machine {
        let first = |cpu: u32| {
            let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            let siblings = std::fs::read_to_string(root.join(file)).ok()?;
            parse(&siblings)?.first().copied()
        };
        let cores = all.iter().filter_map(|&cpu| Some((cpu, first(cpu)?))).collect();
        Machine { all, cores }
    }

    /// `count` CPUs that are not taken, those in `near` first and siblings together. None if there
    /// are not so many: a part that runs anywhere is better than two on one CPU.
    pub fn choose(&self, taken: &Cpus, near: &Cpus, count: u32) -> Option<Cpus> {
        let core = |cpu: &u32| self.cores.get(cpu).copied().unwrap_or(*cpu);
        // A core of which somebody else has a half is for those who find nothing better.
        let shared: BTreeSet<u32> = taken.iter().map(core).collect();
        let mut free: Vec<u32> = self.all.difference(taken).copied().collect();
        free.sort_by_key(|cpu| (!near.contains(cpu), shared.contains(&core(cpu)), core(cpu), *cpu));
        let count = usize::try_from(count).ok()?;
        (count > 0 && count <= free.len()).then(|| free.into_iter().take(count).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for list in ["0", "0-3", "0-47,96-143", "1,3,5-6"] {
            assert_eq!(text(&parse(list).unwrap()), list);
        }
        assert_eq!(parse("0-3\n").unwrap().len(), 4);
        assert_eq!(text(&Cpus::new()), "");
        for bad in ["a", "3-1", "0-99999999", "-"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    /// Two sockets of four cores with two threads each, as most servers number them.
    fn machine() -> Machine {
        let all = parse("0-15").unwrap();
        let cores = all.iter().map(|&cpu| (cpu, cpu % 8)).collect();
        Machine { all, cores }
    }

    fn pick(taken: &str, near: &str, count: u32) -> Option<String> {
        let set = |list| parse(list).unwrap();
        machine().choose(&set(taken), &set(near), count).map(|cpus| text(&cpus))
    }

    #[test]
    fn whole_cores_near_the_gpu_come_first() {
        assert_eq!(pick("", "4-7,12-15", 4).unwrap(), "4-5,12-13");
        assert_eq!(pick("4-5,12-13", "4-7,12-15", 4).unwrap(), "6-7,14-15");
        // Nothing near is left: elsewhere, but not together with somebody else.
        assert_eq!(pick("4-7,12-15,0", "4-7,12-15", 2).unwrap(), "1,9");
        assert_eq!(pick("", "", 2).unwrap(), "0,8");
    }

    #[test]
    fn nobody_is_put_on_anothers_cpu() {
        assert_eq!(pick("0-14", "", 1).unwrap(), "15");
        assert_eq!(pick("0-14", "", 2), None);
        assert_eq!(pick("", "", 17), None);
        assert_eq!(pick("", "", 0), None);
    }

    proptest! {
        #[test]
        fn what_is_chosen_is_free_and_as_many_as_asked(
            taken in proptest::collection::btree_set(0..16u32, 0..16),
            near in proptest::collection::btree_set(0..20u32, 0..16),
            count in 1..18u32,
        ) {
            let machine = machine();
            let free: Cpus = machine.all.difference(&taken).copied().collect();
            match machine.choose(&taken, &near, count) {
                Some(cpus) => {
                    prop_assert_eq!(cpus.len(), count as usize);
                    prop_assert!(cpus.is_subset(&free));
                    // No farther one while a near one is free.
                    let near_free = free.intersection(&near).count();
                    let near_chosen = cpus.intersection(&near).count();
                    prop_assert_eq!(near_chosen, near_free.min(count as usize));
                }
                None => prop_assert!(free.len() < count as usize),
            }
        }
    }

    #[test]
    fn siblings_are_read_from_the_tree() {
        let dir = crate::testing::TempDir::new("cpus");
        for (cpu, siblings) in [(0, "0,2"), (2, "0,2")] {
            let at = dir.path().join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("thread_siblings_list"), format!("{siblings}\n")).unwrap();
        }
        let machine = Machine::look(dir.path(), parse("0-3").unwrap());
        assert_eq!(text(&machine.choose(&Cpus::new(), &Cpus::new(), 2).unwrap()), "0,2");
    }
}
