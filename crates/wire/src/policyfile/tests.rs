use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tutti_model::{
    Budget, Class, GpuQuota, Limit, Notify, OwnTerms, Period, Place, PlacementRule, Policy,
    QueueOrder, Reservation, Span, Spare, Team, Time, Topology, WatchAction, WatchPolicy,
};

use super::*;

const FILE: &str = r#"
patience = "10m"
half_life = "14d"
order = "fair_known"

[gpu_weights]
H100 = 1.0
a100 = 0.5

[classes.urgent]
rank = 100
admins_only = true

[teams.research]
guarantee = 64
limit = 128
weight = 2
members = ["ada", "bob"]

[teams.vision]
parent = "research"
guarantee = { any = 8, h100 = 16 }
weight = 0.25

[[reservations]]
name = "power work"
nodes = ["n[1-16]", "gpu07"]
from = "2026-12-01T08:00:00Z"
until = "2026-12-01T13:00:00+01:00"

[[reservations]]
name = "deadline"
nodes = "n20"
from = 2026-12-02T08:00:00Z
for = "4h"
team = "vision"

[topology]
rail_label = "pod"
[topology.racks.r1]
nodes = ["n[1-16]"]
rail = "a"
site = "east"
[topology.nodes."gpu[07-08]"]
site = "west"

[preemption]
not_again_within = "1h"

[durations]
learn = true

[[spares]]
per = "rack"
nodes = 1
"#;

fn policy(text: &str) -> Policy {
    parse(Some("p.toml"), text.as_bytes()).unwrap_or_else(|e| panic!("{e}"))
}

fn errors(text: &str) -> String {
    let e = parse(Some("p.toml"), text.as_bytes()).expect_err(text);
    e.hint().map_or(e.to_string(), |hint| format!("{e}\n  {hint}"))
}

#[test]
fn a_file_is_a_policy() {
    let p = policy(FILE);
    assert_eq!((p.patience, p.half_life), (Span::secs(600), Span::secs(14 * 86_400)));
    assert_eq!(p.order, QueueOrder::FairKnown);
    assert_eq!(p.gpu_weights, BTreeMap::from([("a100".into(), 500), ("h100".into(), 1000)]));
    assert_eq!(p.classes.keys().collect::<Vec<_>>(), ["standard", "urgent"]);
    assert_eq!(p.classes["urgent"], Class { rank: 100, admins_only: true, default_time: None });
    let (research, vision) = (&p.teams["research"], &p.teams["vision"]);
    assert_eq!((research.guarantee.any, research.weight), (64, 2000));
    assert_eq!(research.limit.as_ref().unwrap().any, 128);
    assert_eq!(research.members.len(), 2);
    assert_eq!((vision.parent.as_deref(), vision.weight), (Some("research"), 250));
    let models = BTreeMap::from([("h100".to_owned(), 16)]);
    assert_eq!(vision.guarantee, GpuQuota { any: 8, models });
    let power = &p.reservations[0];
    assert_eq!((power.nodes.len(), power.team.as_deref()), (17, None));
    assert_eq!(power.until.since(power.from), Span::secs(4 * 3600));
    assert_eq!(p.reservations[1].until.since(p.reservations[1].from), Span::secs(4 * 3600));
    let place = |site: &str, rail: Option<&str>, rack: Option<&str>| Place {
        site: Some(site.to_owned()),
        rail: rail.map(str::to_owned),
        rack: rack.map(str::to_owned),
    };
    assert_eq!(p.topology.nodes["n16"], place("east", Some("a"), Some("r1")));
    assert_eq!(p.topology.nodes["gpu08"], place("west", None, None));
    assert_eq!((p.topology.rail_label.as_str(), p.topology.rack_label.as_str()), ("pod", "rack"));
    assert_eq!(p.preemption.not_again_within, Span::secs(3600));
    assert!(p.preemption.enabled && p.durations.learn);
    assert_eq!(p.spares, [Spare { per: Topology::Rack, nodes: 1 }]);
}

#[test]
fn what_is_not_said_is_as_always() {
    assert_eq!(policy(""), Policy::default());
    assert_eq!(policy("# nothing\n[teams]\n"), Policy::default());
}

#[test]
fn errors_say_where_what_and_how() {
    for (text, want) in [
        (
            "patience = 'soon'",
            "p.toml:1:12: patience: 'soon' is not a length of time: write 90s, 15m, 2h, 1d12h or 02:30:00",
        ),
        (
            "\n[teams.a]\nguarante = 4",
            "p.toml:3:1: teams.a.guarante: unknown key, did you mean 'guarantee'?\n  keys here: parent, guarantee, limit, weight, members, default_time, budget",
        ),
        (
            "[teams.a]\nguarantee = 'all'",
            "p.toml:2:13: teams.a.guarantee: wants a number of GPUs, or a table such as { any = 32, h100 = 32 }, found the text \"all\"",
        ),
        (
            "[teams.a]\nguarantee = { h100 = -1 }",
            "p.toml:2:22: teams.a.guarantee.h100: wants a whole number, not negative, found the number -1",
        ),
        (
            "[teams.a]\nweight = -1",
            "p.toml:2:10: teams.a.weight: wants a number such as 2 or 0.5, found the number -1",
        ),
        (
            "[teams.a]\nweight = 0.0005",
            "p.toml:2:10: teams.a.weight: at most three digits after the point",
        ),
        (
            "[gpu_weights]\nh100 = 'x'",
            "p.toml:2:8: gpu_weights.h100: wants a number such as 2 or 0.5, found the text \"x\"",
        ),
        ("[gpu_weights]\nh100 = 1\nH100 = 2", "p.toml:2:8: gpu_weights.h100: given twice"),
        (
            "order = 'fiar'",
            "p.toml:1:9: order: 'fiar' is not known here, did you mean 'fair'?\n  write one of: fair, fair_known, fifo, srtf, srsf",
        ),
        (
            "[[reservations]]\nname='x'\nnodes=['n1','n[2']\nfrom='2026-12-01T08:00:00Z'\nfor='1h'",
            "p.toml:3:13: reservations[0].nodes[1]: 'n[2' is no list of nodes: write n7, n[1-16] or gpu[01-08,11]",
        ),
        (
            "[[reservations]]\nname='x'\nnodes='n1'\nfrom='tomorrow'\nfor='1h'",
            "p.toml:4:6: reservations[0].from: 'tomorrow' is no time: write 2026-12-01T08:00:00Z, or +01:00 and the like for Z",
        ),
        (
            "[[reservations]]\nname='x'\nnodes='n1'\nfrom=2026-12-01T08:00:00\nfor='1h'",
            "p.toml:4:6: reservations[0].from: '2026-12-01T08:00:00' is no time: write 2026-12-01T08:00:00Z, or +01:00 and the like for Z",
        ),
        (
            "[[reservations]]\nname='x'\nnodes='n1'\nfrom=2026-12-01T08:00:00Z",
            "p.toml:1:1: reservations[0]: when it ends is missing: write until = \"…\" or for = \"4h\"",
        ),
        (
            "[[reservations]]\nname='x'\nnodes='n1'\nfrom=2026-12-01T08:00:00Z\nuntil=2026-12-01T09:00:00Z\nfor='1h'",
            "p.toml:6:5: reservations[0].for: not together with 'until'",
        ),
        (
            "[topology.racks.r1]\nnodes=['n[1-3]']\n[topology.racks.r2]\nnodes=['n[3-4]']",
            "p.toml:4:7: topology.racks.r2.nodes: n3 has a place already",
        ),
        (
            "[topology.nodes.'n[']\nrack='a'",
            "p.toml:1:17: topology.nodes.n[: 'n[' is no list of nodes: write n7, n[1-16] or gpu[01-08,11]",
        ),
        (
            "[[spares]]\nper='rak'\nnodes=1",
            "p.toml:2:5: spares[0].per: 'rak' is not known here, did you mean 'rack'?\n  write one of: island, node, rack, rail, site, any",
        ),
        (
            "[preemption]\nenabled = 1",
            "p.toml:2:11: preemption.enabled: wants true or false, found the number 1",
        ),
        ("teams = 3", "p.toml:1:9: teams: wants a table, found the number 3"),
        ("[teams.a\n", "p.toml:1:9: not valid TOML: unclosed table, expected `]`"),
    ] {
        assert_eq!(errors(text), want);
    }
    let all = errors("patence = '5m'");
    assert!(
        all.starts_with(
            "p.toml:1:1: patence: unknown key, did you mean 'patience'?\n  keys here: order,"
        ),
        "{all}"
    );
}

#[test]
fn problems_of_meaning_come_all_at_once_and_with_their_lines() {
    let text = "half_life = '0s'
[teams.a]
parent = 'b'
[teams.b]
parent = 'a'
guarantee = 8
limit = 4
[teams.'c.d']
parent = 'nobody'
weight = 0
[[spares]]
per = 'node'
nodes = 1
[[reservations]]
name = 'work'
nodes = 'n1'
from = '2026-12-01T08:00:00Z'
until = '2026-12-01T07:00:00Z'
team = 'x'
[[reservations]]
name = 'work'
nodes = []
from = '2026-12-01T08:00:00Z'
for = '1h'
";
    let e = parse(Some("p.toml"), text.as_bytes()).unwrap_err();
    let found: Vec<_> = e.0.iter().map(|e| (e.line, e.key.as_deref().unwrap())).collect();
    for want in [
        (1, "half_life"),
        (3, "teams.a.parent"),
        (5, "teams.b.parent"),
        (7, "teams.b.limit"),
        (9, "teams.c.d.parent"),
        (10, "teams.c.d.weight"),
        (12, "spares.0.per"),
        (20, "reservations.work"),
        (22, "reservations.work.nodes"),
    ] {
        assert!(found.contains(&want), "{want:?} in\n{e}");
    }
    assert!(
        e.to_string().contains("p.toml:9:10: teams.c.d.parent: there is no team 'nobody'"),
        "{e}"
    );
}

#[test]
fn a_topology_file_stands_alone() {
    let map =
        parse_topology(Some("t.toml"), b"site_label = 'dc'\n[racks.r1]\nnodes = ['n[1-2]']\n");
    let map = map.unwrap();
    assert_eq!((map.nodes.len(), map.site_label.as_str()), (2, "dc"));
    let e =
        parse_topology(None, b"[racks.r1]\nnodes=['a']\n[racks.r2]\nnodes=['a']\n").unwrap_err();
    assert_eq!(e.to_string(), "policy:4:7: racks.r2.nodes: a has a place already");
    assert!(parse_topology(None, b"[teams.a]").is_err());
    let bad = parse_topology(None, b"site_label = 'dc'\nrack_label = ''\n").unwrap_err();
    assert!(bad.to_string().starts_with("policy:2:14: rack_label: a name has"), "{bad}");
    let bad = parse_topology(None, b"[nodes.n1]\nrack = ''\n").unwrap_err();
    assert!(bad.to_string().starts_with("policy:2:8: nodes.n1.rack: a name has"), "{bad}");
}

#[test]
fn the_default_policy_is_written_as_a_file_to_start_from() {
    let text = write(&Policy::default()).unwrap();
    assert!(text.contains("patience = \"5m\""), "{text}");
    assert!(text.contains("[classes.urgent]\nrank = 100\nadmins_only = true"), "{text}");
    assert_eq!(policy(&text), Policy::default());
    assert_eq!(policy(&write(&policy(FILE)).unwrap()), policy(FILE));
}

#[test]
fn what_changed_is_said_in_the_words_of_the_file() {
    let said = |old: &Policy, new: &Policy| -> Vec<String> {
        let show = |c: Change| match (c.old, c.new) {
            (Some(old), Some(new)) => format!("{}: {old} -> {new}", c.path),
            (None, Some(new)) => format!("+ {} = {new}", c.path),
            (old, None) => format!("- {} = {}", c.path, old.unwrap()),
        };
        changes(old, new).unwrap().into_iter().map(show).collect()
    };
    let old = policy("[teams.a]\nguarantee = 4\n[teams.b]\n[topology.racks.r1]\nnodes = 'n[1-4]'");
    let mut new = old.clone();
    assert!(said(&old, &new).is_empty());
    new.patience = Span::secs(60);
    new.teams.get_mut("a").unwrap().guarantee.any = 8;
    new.teams.remove("b");
    new.topology.nodes.remove("n4");
    new.reservations.push(Reservation {
        name: "work".into(),
        nodes: BTreeSet::from(["n1".to_owned()]),
        from: Time(0),
        until: Time(1000),
        team: None,
    });
    assert_eq!(
        said(&old, &new),
        [
            "patience: \"5m\" -> \"1m\"",
            "+ reservations.work = { from = \"1970-01-01T00:00:00Z\", name = \"work\", nodes = [\"n1\"], until = \"1970-01-01T00:00:01Z\" }",
            "teams.a.guarantee: 4 -> 8",
            "- teams.b = { weight = 1 }",
            "topology.racks.r1.nodes: [\"n[1-4]\"] -> [\"n[1-3]\"]",
        ]
    );
    assert_eq!(said(&Policy::default(), &old).len(), 3);
}

#[test]
fn what_is_watched_is_read_and_mistakes_are_placed() {
    let text = "[teams.a]\nbudget = { gpu_hours = 50, per = \"week\" }\n\n[watch]\nevery = \"1s\"\n\n\
                [watch.idle]\nlimit = \"5%\"\nfor = \"1h\"\naction = \"kill\"\n\n[watch.flapping]\n\
                limit = 4\n\n[watch.notify]\nemail = [\"ops@example.org\"]\n";
    let policy = parse(None, text.as_bytes()).unwrap();
    let idle = policy.watch.terms(tutti_model::WatchRule::Idle);
    assert_eq!((idle.limit, idle.lasts), (Limit::percent(5), Span::secs(3600)));
    assert_eq!(policy.watch.flapping.limit, Some(Limit::Count(4)));
    let budget = policy.teams["a"].budget;
    assert_eq!(budget, Some(Budget { gpu_hours: 50, per: Period::Week }));
    let bad = "[watch.disk]\naction = \"kill\"\n\n[watch.notify]\ncommand = \"/bin/sh\"\n";
    let said = parse(None, bad.as_bytes()).unwrap_err().to_string();
    assert!(said.starts_with("policy:2:10: watch.disk.action: disk is about no job"), "{said}");
    assert!(said.contains("policy:5:11: watch.notify.command: '/bin/sh' is no name"), "{said}");
    let unknown = parse(None, b"[watch.idel]\nfor = \"1h\"\n").unwrap_err().to_string();
    assert!(unknown.contains("watch.idel"), "{unknown}");
}

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9 ._-]{0,8}|\\PC{1,6}"
}

fn quota() -> impl Strategy<Value = GpuQuota> {
    let models = prop::collection::btree_map("[b-z][a-z0-9-]{0,5}", any::<u32>(), 0..3);
    (any::<u32>(), models).prop_map(|(any, models)| GpuQuota { any, models })
}

fn team(parents: Vec<String>) -> impl Strategy<Value = Team> {
    let parent = prop::option::of(prop::sample::select(if parents.is_empty() {
        vec![String::new()]
    } else {
        parents.clone()
    }));
    let members = prop::collection::btree_set("[a-z]{1,5}", 0..3);
    let period = prop::sample::select(vec![Period::Day, Period::Week, Period::Month]);
    let budget = (0u64..1 << 40, period).prop_map(|(gpu_hours, per)| Budget { gpu_hours, per });
    let budget = prop::option::of(budget);
    let more = (members, budget, default_time());
    (parent, quota(), prop::option::of(quota()), any::<u32>(), more).prop_map(
        move |(parent, guarantee, limit, weight, (members, budget, default_time))| Team {
            parent: parent.filter(|p| !p.is_empty()),
            guarantee,
            limit,
            weight,
            members,
            budget,
            default_time,
        },
    )
}

fn hosts() -> impl Strategy<Value = BTreeSet<String>> {
    prop::collection::btree_set("[a-c]{1,2}[0-9]{0,3}", 1..20)
}

fn reservation() -> impl Strategy<Value = Reservation> {
    let time = || prop_oneof![any::<u64>(), 0u64..4_000_000_000_000];
    (name(), hosts(), time(), time(), prop::option::of(name())).prop_map(
        |(name, nodes, from, until, team)| Reservation {
            name,
            nodes,
            from: Time(from),
            until: Time(until),
            team,
        },
    )
}

fn places() -> impl Strategy<Value = BTreeMap<String, Place>> {
    let level = || prop::option::of("[a-c]");
    let place =
        (level(), level(), level()).prop_map(|(site, rail, rack)| Place { site, rail, rack });
    prop::collection::btree_map("[a-c]{1,2}[0-9]{0,2}", place, 0..20)
}

#[test]
fn prices_are_numbers_or_cloud_shapes() {
    let text = "[prices.gpus]\nH100 = 2.99\nA100 = 'AWS p4d.24xlarge'\nl4 = 1\n";
    let policy = parse(None, text.as_bytes()).unwrap();
    let price = |model: &str| policy.prices.gpus[model].micros;
    assert_eq!((price("h100"), price("a100"), price("l4")), (2_990_000, 2_744_705, 1_000_000));
    assert_eq!(policy.prices.currency, "USD");
    let written = write(&policy).unwrap();
    assert!(written.contains("a100 = \"aws p4d.24xlarge\""), "{written}");
    assert_eq!(parse(None, written.as_bytes()).unwrap(), policy);
    assert!(!write(&Policy::default()).unwrap().contains("prices"), "nobody set any");
    let bad = parse(Some("p.toml"), b"[prices.gpus]\nh100 = 'aws p9'").unwrap_err().to_string();
    assert!(bad.contains("p.toml:2:8") && bad.contains("aws p5.48xlarge"), "{bad}");
    let twice =
        parse(Some("p.toml"), b"[prices.gpus]\nh100 = 1\nH100 = 2").unwrap_err().to_string();
    assert!(twice.contains("given twice"), "{twice}");
    let changed = changes(&Policy::default(), &policy).unwrap();
    assert!(changed.iter().any(|c| c.path == "prices.gpus.h100"), "{changed:?}");
}

/// It would be printed as euros, or be that of another GPU.
#[test]
fn a_cloud_shape_is_in_dollars_and_of_its_own_gpu() {
    let parse = |text: &str| parse(Some("p.toml"), text.as_bytes()).map_err(|e| e.to_string());
    let in_euros = "[prices]\ncurrency = 'EUR'\n[prices.gpus]\n";
    let bad = parse(&format!("{in_euros}a100 = 'aws p4d.24xlarge'\n")).unwrap_err();
    let why = "\"aws p4d.24xlarge\" is in USD, the currency is EUR: write a number";
    assert!(bad.contains("p.toml:4:") && bad.contains("prices.gpus.a100"), "{bad}");
    assert!(bad.contains(why), "{bad}");
    let policy = parse(&format!("{in_euros}a100 = 2.5\n")).unwrap();
    assert_eq!(policy.prices.currency, "EUR");
    let bad = parse("[prices.gpus]\nh100 = 'aws p4d.24xlarge'\n").unwrap_err();
    assert!(bad.contains("has a100 GPUs, not h100"), "{bad}");
}

fn default_time() -> impl Strategy<Value = Option<Span>> {
    prop::option::of((1u64..1 << 30).prop_map(Span::secs))
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let word = |order| prop::sample::select(order);
    let orders = vec![QueueOrder::Fair, QueueOrder::FairKnown, QueueOrder::Fifo, QueueOrder::Srsf];
    let rules = vec![PlacementRule::Fragments, PlacementRule::BestFit, PlacementRule::FirstFit];
    let knobs = (word(orders), prop::sample::select(rules), 0u64..1 << 50, 0usize..1 << 40);
    let classes = prop::collection::btree_map(
        name(),
        (any::<i32>(), any::<bool>(), default_time()).prop_map(
            |(rank, admins_only, default_time)| Class { rank, admins_only, default_time },
        ),
        0..3,
    );
    let teams = prop::collection::btree_map(name(), team(vec!["a".into(), "b.c".into()]), 0..4);
    let weights = prop::collection::btree_map("[a-z][a-z0-9]{0,4}", any::<u32>(), 0..3);
    let rest = (weights, prop::collection::vec(reservation(), 0..3), places());
    (knobs, classes, teams, rest).prop_map(
        |(
            (order, placement, span, number),
            mut classes,
            teams,
            (gpu_weights, reservations, nodes),
        )| {
            classes.insert("standard".into(), Class::default());
            let mut p = Policy {
                order,
                placement,
                classes,
                teams,
                gpu_weights,
                reservations,
                ..Policy::default()
            };
            (p.patience, p.half_life, p.backfill_depth) = (Span(span), Span(span / 3), number);
            (p.preemption.not_again_within, p.durations.margin_percent) = (Span(span / 7), 12);
            p.default_time = Some(Span::secs(1 + span % 100_000)).filter(|t| t.0 % 2000 == 0);
            p.spares = vec![Spare { per: Topology::Rail, nodes: 3 }];
            p.topology.nodes = nodes;
            p.watch = watch(span, number);
            p
        },
    )
}

fn watch(span: u64, number: usize) -> WatchPolicy {
    if number.is_multiple_of(2) {
        return WatchPolicy::default();
    }
    let terms = |limit| OwnTerms {
        limit: Some(limit),
        lasts: Some(Span(span)),
        action: Some(WatchAction::Kill),
        ..OwnTerms::default()
    };
    let notify = Notify {
        webhook: Some("http://127.0.0.1/".into()),
        email: vec!["ops@example.org".into()],
        ..Notify::default()
    };
    WatchPolicy {
        every: Some(Span(span)),
        idle: terms(Limit::Percent(number as u32 % 10_000)),
        flapping: OwnTerms { within: Some(Span(span)), ..terms(Limit::Count(number as u32)) },
        certificate: terms(Limit::Time(Span(span))),
        notify,
        ..WatchPolicy::default()
    }
}

/// What the file says is checked for sense as well; here only that nothing is lost on the way.
fn read_back(text: &str) -> Policy {
    let root = from_toml::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let shape = read::tree::<shape::PolicyShape>(&root).unwrap_or_else(|e| panic!("{e}\n{text}"));
    shape.into_policy().unwrap_or_else(|e| panic!("{e:?}\n{text}"))
}

/// Whatever comes in, every error has a position inside or just after the text.
fn never_lost(bytes: &[u8]) {
    for errors in
        [parse(None, bytes).err(), parse_topology(None, bytes).err()].into_iter().flatten()
    {
        let lines = bytes.iter().filter(|&&b| b == b'\n').count() as u32 + 1;
        assert!(!errors.0.is_empty());
        for e in &errors.0 {
            assert!((1..=lines).contains(&e.line), "line {} of {lines}: {e}", e.line);
            assert!(e.column >= 1 && e.column as usize <= bytes.len() + 2, "{e}");
        }
        let _ = (errors.to_string(), errors.hint());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_written_reads_back(policy in any_policy()) {
        let text = write(&policy).unwrap();
        prop_assert_eq!(read_back(&text), policy, "{}", text);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        never_lost(&bytes);
    }

    #[test]
    fn random_text_never_panics(text in "[ -~\n\t\"'{}\\[\\]:=#é\u{0}-]{0,200}") {
        never_lost(text.as_bytes());
        never_lost(format!("[teams.a]\n{text}").as_bytes());
    }

    #[test]
    fn broken_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..5), 1..6),
    ) {
        let mut bytes = FILE.as_bytes().to_vec();
        for (at, byte, kind) in edits {
            let at = at.index(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
            match kind {
                _ if bytes.is_empty() => {}
                0 => bytes[at] = byte,
                1 => bytes.insert(at, b"{}[]:=,\"'\n#- "[byte as usize % 13]),
                2 => { bytes.remove(at); }
                3 => bytes.rotate_left(at),
                _ => bytes.truncate(at),
            }
        }
        never_lost(&bytes);
    }
}
