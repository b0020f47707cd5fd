//! `tutti nodes`.

use tutti_model::{BurnIn, Finding, HealthAction, LinkFigures, NodeKept, NodeState, Place};
use tutti_wire::api::NodeRow;

use super::table::{Grid, plain};
use super::{count, harmless, milli, reservations, time};
use crate::style::{Ink, Style, of_node};

/// Drains nodes on which too much went wrong.
const NOBODY: &str = "tutti";
/// GPUs in parts that a row names; the rest is counted.
const SHARED_SHOWN: usize = 2;
/// Findings that a row tells.
const FINDINGS_SHOWN: usize = 2;
/// Reservations that a row tells.
const RESERVATIONS_SHOWN: usize = 2;
const KEPT_SHOWN: usize = 2;

pub const NONE: &str = "no nodes: tutti token create --join makes a token for tutti agent";

/// What is shown beyond the usual.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns {
    pub labels: bool,
    pub links: bool,
}

pub fn table(nodes: &[NodeRow], columns: Columns, style: Style, width: Option<u16>) -> String {
    if nodes.is_empty() {
        return NONE.to_owned();
    }
    let placed = nodes.iter().any(|n| n.place != Place::default());
    let mut head = vec!["NAME", "STATE"];
    head.extend(placed.then_some("PLACE"));
    let ill = nodes.iter().any(|n| !n.findings.is_empty());
    head.extend(ill.then_some("HEALTH"));
    head.extend(["GPUS", ">USED", ">CPUS", ">USED", ">MEM", ">USED", ">JOBS"]);
    head.extend(columns.labels.then_some("LABELS"));
    if columns.links {
        head.extend([">INSIDE", ">OUTSIDE", ">COPY", "MEASURED"]);
    }
    head.push("NOTE");
    let mut grid = Grid::new(&head, style);
    for n in nodes {
        let f = &n.facts;
        let gpus = match &f.gpu_model {
            Some(model) => format!("{} × {model}", f.gpus),
            None => "-".to_owned(),
        };
        let mut row = vec![plain(n.name.clone()), (n.state.as_str().to_owned(), of_node(n.state))];
        row.extend(placed.then(|| plain(place(&n.place))));
        row.extend(ill.then(|| health(n)));
        row.extend([
            plain(gpus),
            plain(milli(n.gpu_milli_used)),
            plain(f.cpus.to_string()),
            plain(n.cpus_used.to_string()),
            plain(gib(f.mem)),
            plain(gib(n.mem_used)),
            plain(n.jobs.len().to_string()),
        ]);
        row.extend(columns.labels.then(|| plain(label_list(n))));
        if columns.links {
            row.extend(links(n.burn_in.as_ref()).map(plain));
        }
        row.push(note(n));
        grid.row(row);
    }
    let simulated = if nodes.iter().any(|n| n.facts.simulated) { " (simulated)" } else { "" };
    format!(
        "{}\n{}, {} of {}{simulated} in use",
        grid.render(width),
        count(nodes.len() as u64, "node"),
        milli(nodes.iter().map(|n| n.gpu_milli_used).sum()),
        count(nodes.iter().map(|n| u64::from(n.facts.gpus)).sum(), "GPU")
    )
}

/// From the widest domain to the narrowest.
pub fn place(p: &Place) -> String {
    let levels: Vec<String> =
        [&p.site, &p.rail, &p.rack].into_iter().flatten().map(|l| harmless(l)).collect();
    if levels.is_empty() { "-".to_owned() } else { levels.join("/") }
}

fn label_list(n: &NodeRow) -> String {
    let all: Vec<String> = n.facts.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(",") }
}

/// Latency and bandwidth inside the node and to others, copying, and when.
fn links(burn_in: Option<&BurnIn>) -> [String; 4] {
    let Some(burn_in) = burn_in else { return ["-"; 4].map(str::to_owned) };
    let gb = |bytes: u64| format!("{:.2} GB/s", bytes as f64 / 1e9);
    let link = |link: Option<LinkFigures>| match link {
        Some(l) => format!("{:.1} µs {}", l.latency_ns as f64 / 1e3, gb(l.bandwidth)),
        None => "-".to_owned(),
    };
    let f = &burn_in.figures;
    let when = format!("{} by job {}", time::stamp(burn_in.at), f.job);
    [link(f.inside), link(f.outside), gb(f.copy), when]
}

/// Nobody can say how it is.
fn is_gone(n: &NodeRow) -> bool {
    matches!(n.state, NodeState::Lost | NodeState::Away)
}

/// In a word or two; the note has the rest.
pub fn health(n: &NodeRow) -> (String, Ink) {
    let worst = n.findings.iter().map(|f| f.action).max();
    let fenced = match n.fenced.as_slice() {
        [] => None,
        [gpu] => Some(format!("GPU {gpu} fenced")),
        gpus => Some(format!("{} GPUs fenced", gpus.len())),
    };
    match (worst, fenced) {
        (None, _) if is_gone(n) => ("unknown".to_owned(), Ink::Yellow),
        (None, _) => ("ok".to_owned(), Ink::Green),
        (Some(HealthAction::RebootNode), _) => ("needs a reboot".to_owned(), Ink::Red),
        (Some(_), Some(fenced)) => (fenced, Ink::Red),
        (Some(worst), None) if worst > HealthAction::RestartJob => {
            (worst.in_words().to_owned(), Ink::Red)
        }
        (Some(_), None) => (count(n.findings.len() as u64, "note"), Ink::Yellow),
    }
}

pub fn note(n: &NodeRow) -> (String, Ink) {
    let mut parts = Vec::new();
    if n.facts.simulated {
        parts.push("simulated".to_owned());
    }
    let lacks: Vec<&str> = n.facts.lacks.iter().map(|lack| lack.what.as_str()).collect();
    if !lacks.is_empty() {
        parts.push(format!("jobs not kept apart by {}", harmless(&lacks.join(", "))));
    }
    parts.extend(n.exclusive.map(|job| format!("all for job {job}")));
    for gpu in n.shared.iter().take(SHARED_SHOWN) {
        let jobs = count(gpu.jobs.len() as u64, "job");
        parts.push(format!("GPU {}: {} by {jobs}", gpu.gpu, milli(gpu.used.into())));
    }
    if n.shared.len() > SHARED_SHOWN {
        parts.push(format!("{} more in parts", n.shared.len() - SHARED_SHOWN));
    }
    if let Some(reason) = n.drain_reason.as_ref().filter(|r| !r.is_empty()) {
        let taken_out = n.drained_by.as_deref() == Some(NOBODY);
        parts.push(if taken_out { format!("taken out: {reason}") } else { reason.clone() });
    }
    // A drain that a finding asked for has said it already.
    let told = |f: &&Finding| n.drain_reason.as_ref() != Some(&f.text);
    let mut findings: Vec<&Finding> = n.findings.iter().filter(told).collect();
    findings.sort_by_key(|f| std::cmp::Reverse(f.action));
    parts.extend(findings.iter().take(FINDINGS_SHOWN).map(|f| harmless(&f.text)));
    if findings.len() > FINDINGS_SHOWN {
        let more = findings.len() - FINDINGS_SHOWN;
        parts.push(format!("{more} more: tutti doctor {}", n.name));
    }
    parts.extend(n.reservations.iter().take(RESERVATIONS_SHOWN).map(reservations::on_node));
    if n.reservations.len() > RESERVATIONS_SHOWN {
        let more = n.reservations.len() - RESERVATIONS_SHOWN;
        parts.push(format!("{more} more: tutti reservations"));
    }
    parts.extend(n.kept.iter().take(KEPT_SHOWN).map(kept));
    if n.kept.len() > KEPT_SHOWN {
        parts.push(format!("and for {}", count((n.kept.len() - KEPT_SHOWN) as u64, "more job")));
    }
    parts.extend(n.trouble.as_ref().map(|trouble| format!("suspect: {trouble}")));
    let slow = n.burn_in.iter().flat_map(|b| &b.figures.slow);
    let slow_gpus = n.gpu_bench.iter().flat_map(|b| &b.figures.slow);
    parts.extend(slow.chain(slow_gpus).map(|slow| harmless(slow)));
    (parts.join("; "), Ink::Dim)
}

/// What is free of a node, and yet not for everybody.
pub fn kept(kept: &NodeKept) -> String {
    let what = if kept.gpus > 0 { count(kept.gpus.into(), "free GPU") } else { "it".to_owned() };
    let is = if kept.gpus > 1 { "are" } else { "is" };
    let until = kept
        .from
        .map_or_else(String::new, |from| format!(", which starts by {}", time::clock(from)));
    format!("{what} {is} kept for job {}{until}", kept.task)
}

fn gib(bytes: tutti_model::Bytes) -> String {
    format!("{}G", bytes.0 >> 30)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use tutti_model::Bytes;
    use tutti_wire::api::{NodeFactsRow, SharedGpu};

    pub fn node() -> NodeRow {
        NodeRow {
            name: "n1".into(),
            state: NodeState::Draining,
            facts: NodeFactsRow {
                address: "127.0.1.1".into(),
                gpu_model: Some("h100".into()),
                gpus: 8,
                cpus: 64,
                mem: Bytes::gib(512),
                simulated: true,
                isolation: "cgroup2".into(),
                lacks: Vec::new(),
                runtimes: Vec::new(),
                agent_version: "0.1.0".into(),
                labels: Default::default(),
                can_suspend: false,
                suspend_note: None,
                share_note: None,
            },
            gpus_used: 2,
            gpu_milli_used: 2000,
            shared: Vec::new(),
            place: Place::default(),
            cpus_used: 4,
            mem_used: Bytes::gib(3),
            jobs: vec!["7".parse().unwrap()],
            exclusive: None,
            drain_reason: Some("fan".into()),
            drained_by: Some("root".into()),
            trouble: None,
            burn_in: None,
            gpu_bench: None,
            findings: Vec::new(),
            fenced: Vec::new(),
            reservations: Vec::new(),
            kept: Vec::new(),
            since: None,
        }
    }

    #[test]
    fn simulated_nodes_say_so() {
        assert_eq!(
            table(&[node()], Columns::default(), Style::PLAIN, None),
            "NAME  STATE     GPUS      USED  CPUS  USED   MEM  USED  JOBS  NOTE
n1    draining  8 × h100     2    64     4  512G    3G     1  simulated; fan
1 node, 2 of 8 GPUs (simulated) in use"
        );
        assert!(table(&[], Columns::default(), Style::PLAIN, None).contains("token create --join"));
    }

    #[test]
    fn places_labels_and_parts_of_gpus_are_shown() {
        let mut placed = node();
        placed.place = Place { site: Some("east".into()), rail: None, rack: Some("r1".into()) };
        placed.facts.labels.insert("rack".into(), "r1".into());
        placed.gpu_milli_used = 1750;
        let jobs = vec!["7".parse().unwrap(), "8_1".parse().unwrap(), "8_2".parse().unwrap()];
        placed.shared = vec![SharedGpu { gpu: 3, used: 750, jobs }];
        let exclusive = "7".parse().ok();
        let other = NodeRow { name: "n2".into(), drain_reason: None, exclusive, ..node() };
        assert_eq!(
            table(&[placed, other], Columns { labels: true, links: false }, Style::PLAIN, None),
            "NAME  STATE     PLACE    GPUS      USED  CPUS  USED   MEM  USED  JOBS  LABELS   NOTE
n1    draining  east/r1  8 × h100  1.75    64     4  512G    3G     1  rack=r1  simulated; GPU 3: 0.75 by 3 jobs; fan
n2    draining  -        8 × h100     2    64     4  512G    3G     1  -        simulated; all for job 7
2 nodes, 3.75 of 16 GPUs (simulated) in use"
        );
    }

    #[test]
    fn a_node_says_for_whom_it_is_kept() {
        let of = |task: &str, gpus, from| NodeKept { task: task.parse().unwrap(), gpus, from };
        let at = tutti_model::Time(3_600_000);
        let kept = vec![of("7", 8, None), of("8", 1, Some(at)), of("9", 0, None)];
        let note = note(&NodeRow { kept, drain_reason: None, ..node() }).0;
        let by = time::clock(at);
        assert_eq!(
            note,
            format!(
                "simulated; 8 free GPUs are kept for job 7; 1 free GPU is kept for job 8, which \
                 starts by {by}; and for 1 more job"
            )
        );
    }

    #[test]
    fn what_is_wrong_with_a_node_is_shown() {
        let finding = |key: &str, gpu: Option<u16>, action| Finding {
            key: key.into(),
            check: "xid".into(),
            gpu: gpu.map(tutti_model::GpuIndex),
            action,
            text: format!("{key} was seen"),
            since: tutti_model::Time(0),
            drill: false,
            by_job: false,
        };
        let mut ill = NodeRow { drain_reason: None, ..node() };
        ill.findings = vec![
            finding("a", None, HealthAction::Note),
            finding("b", Some(3), HealthAction::FenceGpu),
            finding("c", None, HealthAction::Note),
        ];
        ill.fenced = vec![3];
        let well = NodeRow { name: "n2".into(), drain_reason: None, ..node() };
        let lost = NodeRow { name: "n3".into(), state: NodeState::Lost, ..well.clone() };
        assert_eq!(health(&lost), ("unknown".to_owned(), Ink::Yellow));
        assert_eq!(
            table(&[ill, well], Columns::default(), Style::PLAIN, None),
            "NAME  STATE     HEALTH        GPUS      USED  CPUS  USED   MEM  USED  JOBS  NOTE
n1    draining  GPU 3 fenced  8 × h100     2    64     4  512G    3G     1  simulated; b was seen; a was seen; 1 more: tutti doctor n1
n2    draining  ok            8 × h100     2    64     4  512G    3G     1  simulated
2 nodes, 4 of 16 GPUs (simulated) in use"
        );
    }

    #[test]
    fn what_was_measured_is_shown_when_asked_for_and_what_is_slow_always() {
        let mut measured = node();
        measured.burn_in = Some(BurnIn {
            at: tutti_model::Time(0),
            by: "root".into(),
            figures: tutti_model::BurnInFigures {
                job: "9".parse().unwrap(),
                ranks: 4,
                inside: Some(LinkFigures { latency_ns: 1500, bandwidth: 6_400_000_000 }),
                outside: None,
                copy: 9_000_000_000,
                slow: vec!["copy is 3.0 times worse (rank 1)".into()],
            },
        });
        let columns = Columns { labels: false, links: true };
        let text = table(&[measured.clone(), node()], columns, Style::PLAIN, None);
        for word in ["1.5 µs 6.40 GB/s", "9.00 GB/s", "by job 9", "copy is 3.0 times worse"] {
            assert!(text.contains(word), "no {word} in\n{text}");
        }
        let usual = table(&[measured], Columns::default(), Style::PLAIN, None);
        assert!(usual.contains("copy is 3.0") && !usual.contains("GB/s"), "{usual}");
    }
}
