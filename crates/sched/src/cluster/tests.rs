use super::*;
use crate::testing::*;

#[test]
fn what_is_claimed_twice_over_is_owed() {
    let c = case().nodes(1, 2).running(gpus(2), &[(1, &[0, 1])]).submit(gpus(2));
    let c = c.claim("2", tutti_model::ClaimCause::Class, &[(1, &[0, 1])]);
    let state = c.state();
    let mut slot = Cluster::new(&state, &c.policy).slots[0].clone();
    let held = [GpuIndex(0), GpuIndex(1)];
    let lease = HeldPart {
        gpus: &held,
        share: Milli::WHOLE,
        cpus: 1,
        mem: Bytes(0),
        alone: false,
        tenant: true,
    };
    assert_eq!((slot.free.gpus, slot.free.cpus, slot.tenants), (0, 62, 2));
    slot.give_back(&lease);
    assert_eq!((slot.free.gpus, slot.free.cpus, slot.tenants), (0, 63, 1), "the claim has it now");
    slot.give_back(&lease);
    assert_eq!((slot.free.gpus, slot.free.cpus, slot.tenants), (2, 64, 0));
}

/// Whoever leaves a fenced GPU leaves it to nobody.
#[test]
fn a_fenced_gpu_is_never_free() {
    let c = case().nodes(1, 2).running(gpus(2), &[(1, &[0, 1])]).fence(1, 1);
    let state = c.state();
    let mut slot = Cluster::new(&state, &c.policy).slots[0].clone();
    let held = [GpuIndex(0), GpuIndex(1)];
    let lease = HeldPart {
        gpus: &held,
        share: Milli::WHOLE,
        cpus: 1,
        mem: Bytes(0),
        alone: false,
        tenant: true,
    };
    slot.give_back(&lease);
    assert_eq!(slot.cards.iter().map(|c| c.free).collect::<Vec<_>>(), [1000, 0]);
    assert_eq!(slot.free.gpus, 1);
}

#[test]
fn names_are_counted_as_people_do() {
    let mut names = ["n10", "n9", "a", "n", "12"];
    names.sort_by_key(|n| natural(n));
    assert_eq!(names, ["a", "n", "n9", "n10", "12"]);
}
