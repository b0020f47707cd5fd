use super::*;

const FLAT8: Layout = Layout { members: 8, nodes: 8, rails: 1 };
const TWO_BY_FOUR: Layout = Layout { members: 8, nodes: 2, rails: 4 };

#[test]
fn names_are_read_back() {
    for a in Algorithm::ALL {
        assert_eq!(a.to_string().parse(), Ok(a));
    }
    assert!("best".parse::<Algorithm>().unwrap_err().to_string().contains("best"));
}

#[test]
fn what_is_measured_does_not_move_a_fixed_choice() {
    let slow = LinkCost { latency: 1.0, per_byte: 1.0 };
    let measured = Links { local: slow, remote: slow };
    assert_eq!("fixed".parse(), Ok(Choice::Fixed));
    assert_eq!(Choice::Fixed.links(measured), Links::default());
    assert_eq!(Choice::Measured.links(measured), measured);
    assert_eq!("tree".parse::<Choice>().unwrap().only(), Some(Algorithm::Tree));
}

#[test]
fn one_node_goes_through_memory() {
    let layout = Layout { members: 4, nodes: 1, rails: 4 };
    for bytes in [8, 1 << 20, 1 << 28] {
        assert_eq!(choose(layout, bytes, Links::default()), Algorithm::Direct);
    }
    let alone = Layout { members: 1, nodes: 1, rails: 1 };
    assert_eq!(choose(alone, 8, Links::default()), Algorithm::Ring);
}

#[test]
fn small_messages_want_few_steps_and_large_ones_little_traffic() {
    assert_eq!(choose(FLAT8, 1024, Links::default()), Algorithm::Halving);
    let odd = Layout { members: 7, nodes: 7, rails: 1 };
    assert_eq!(choose(odd, 256 << 20, Links::default()), Algorithm::Ring);
}

#[test]
fn several_members_per_node_go_in_two_levels() {
    assert_eq!(choose(TWO_BY_FOUR, 64 << 20, Links::default()), Algorithm::Hierarchical);
    assert_eq!(choose(TWO_BY_FOUR, 1024, Links::default()), Algorithm::Hierarchical);
}

#[test]
fn slow_memory_makes_two_levels_a_bad_bargain() {
    let links = Links { local: LinkCost { latency: 1e-3, per_byte: 1e-6 }, ..Links::default() };
    assert_ne!(choose(TWO_BY_FOUR, 64 << 20, links), Algorithm::Hierarchical);
}

#[test]
fn costs_grow_with_the_message_and_are_finite() {
    for layout in [FLAT8, TWO_BY_FOUR, Layout { members: 5, nodes: 3, rails: 1 }] {
        for a in [Algorithm::Ring, Algorithm::Halving, Algorithm::Tree, Algorithm::Hierarchical] {
            let at = |bytes| cost(a, layout, bytes, Links::default());
            assert!(at(1 << 10) < at(1 << 24) && at(1 << 24).is_finite(), "{a} {layout:?}");
        }
    }
}
