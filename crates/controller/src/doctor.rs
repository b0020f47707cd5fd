//! Looks for what is wrong or soon will be, in a running controller and in a data dir at rest.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tutti_engine::{Record, invariants};
use tutti_journal::{BoxError, Entry, JournalError, Level, What, codec, verify};
use tutti_model::{
    HealthAction, Link, Node, NodeFacts, NodeKeyRecord, NodeState, SharedKey, State, count,
};
use tutti_wire::api::{DoctorReport, Finding, FindingLevel};
use tutti_wire::pki::{Ca, Validity};

use crate::api::App;
use crate::archive::Archive;
use crate::clock::now;
use crate::core::{Stopped, World};
use crate::room::DiskRoom;
use crate::views::{counted, trouble};

const DISK_LOW_BYTES: u64 = 1 << 30;
const IN_USE: &str = "a controller that runs has it, so that nobody else can read it now";
/// So many nodes are named in one finding.
const NAMED_MAX: usize = 8;
const EXPIRY_SOON: Duration = Duration::from_secs(30 * 86_400);

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, level: FindingLevel, subject: &str, message: impl Into<String>) {
        self.0.push(Finding { level, subject: subject.to_owned(), message: message.into() });
    }
    fn ok(&mut self, subject: &str, message: impl Into<String>) {
        self.add(FindingLevel::Ok, subject, message);
    }
    fn warn(&mut self, subject: &str, message: impl Into<String>) {
        self.add(FindingLevel::Warning, subject, message);
    }
    fn error(&mut self, subject: &str, message: impl Into<String>) {
        self.add(FindingLevel::Error, subject, message);
    }
    /// The worst first.
    fn report(mut self) -> DoctorReport {
        self.0.sort_by_key(|f| std::cmp::Reverse(f.level));
        DoctorReport { findings: self.0 }
    }
}

/// Examines a running controller.
pub async fn examine(app: &App) -> Result<DoctorReport, Stopped> {
    let mut found = Findings::default();
    match app.core.journal_stats().await? {
        Ok(stats) => found.ok(
            "journal",
            format!(
                "{}, newest snapshot at {}, {} on disk",
                count(stats.last.0, "record"),
                stats.snapshot.unwrap_or_default(),
                count(stats.disk_bytes, "byte")
            ),
        ),
        Err(error) => found.error("journal", crate::error::chain(&error)),
    }
    // Of jobs and of the ledger a clone has only pointers; the checks then hold nobody up.
    let (state, suspects) = app.core.read(|w| (w.engine.state().clone(), suspects(w))).await?;
    nodes(&mut found, &state, &app.links.refused());
    for (node, trouble) in suspects {
        found.warn(&format!("node {node}"), format!("still takes work, but {trouble}"));
    }
    let checked = tokio::task::spawn_blocking(move || (invariants::check_all(&state), state));
    match checked.await {
        Ok((breaches, state)) => state_checks(&mut found, &breaches, &state),
        Err(_) => {
            found.error("state", "the check itself broke off: this is a bug, please report it")
        }
    }
    archive(&mut found, &app.archive);
    disk(&mut found, &app.data_dir);
    certificate(&mut found, "server certificate", app.server_until);
    match Validity::of(app.ca.der()) {
        Ok(validity) => certificate(&mut found, "CA", validity.until),
        Err(error) => found.error("CA", crate::error::chain(&error)),
    }
    if app.audit.has_failed() {
        found.error("audit log", "lines could not be written since the start; see the log");
    }
    Ok(found.report())
}

fn nodes(found: &mut Findings, state: &State, refused: &BTreeMap<String, String>) {
    let mut ready = 0;
    for (name, why) in refused {
        found.error(&format!("node {name}"), format!("its agent is turned away: {why}"));
    }
    for node in state.nodes.values() {
        let name = format!("node {}", node.facts.name);
        for lack in &node.facts.lacks {
            found.warn(&name, format!("does not keep jobs apart by {}: {}", lack.what, lack.why));
        }
        if let Some(why) = &node.facts.suspend_note {
            found.warn(&name, format!("can't suspend jobs: {why}"));
        }
        if let Some(why) = &node.facts.share_note {
            found.warn(&name, format!("can't hold jobs to a part of a GPU: {why}"));
        }
        let record = state.node_keys.get(&node.facts.name);
        if let Some(shared) = record.and_then(NodeKeyRecord::shared) {
            found.error(&name, two_holders(&node.facts.name, shared));
        }
        match node.state() {
            NodeState::Ready => ready += 1,
            NodeState::Draining | NodeState::Drained => found.warn(&name, drained(node)),
            NodeState::Away => found.warn(&name, "its stream broke a moment ago"),
            NodeState::Cleaning => {
                found
                    .warn(&name, format!("stops {} leases that are not current", node.stale.len()));
            }
            // Why is said above.
            NodeState::Lost if refused.contains_key(&node.facts.name) => {}
            NodeState::Lost => found.error(
                &name,
                "not heard of: look at the machine, the network and `tutti agent` on it",
            ),
        }
    }
    for node in state.nodes.values() {
        for finding in &node.findings {
            let level = match finding.action {
                HealthAction::Note | HealthAction::RestartJob => FindingLevel::Warning,
                _ => FindingLevel::Error,
            };
            let name = &node.facts.name;
            let text = format!("{}; `tutti doctor {name}` says more", finding.text);
            found.add(level, &format!("node {name}"), text);
        }
    }
    reach(found, state);
    match state.nodes.len() {
        0 => found.warn("nodes", "none has joined yet: `tutti token create --join` starts one"),
        all => found.ok("nodes", format!("{ready} of {all} are ready")),
    }
}

fn two_holders(node: &str, shared: &SharedKey) -> String {
    let SharedKey { first, second, .. } = shared;
    format!(
        "two agents hold its key, at {first} and at {second}: somebody has copied `node.pem`, or \
         started one machine from another's disk. `tutti nodes remove {node}` makes the key useless; \
         then let the right machine join again"
    )
}

/// A gang over nodes that do not reach each other would only time out, so there is none.
fn reach(found: &mut Findings, state: &State) {
    let mut groups: BTreeMap<Option<&str>, Vec<&NodeFacts>> = BTreeMap::new();
    for node in state.nodes.values().filter(|n| !matches!(n.link, Link::Lost { .. })) {
        groups.entry(node.facts.reach()).or_default().push(&node.facts);
    }
    if groups.len() < 2 {
        return;
    }
    for facts in groups.values() {
        let Some(of) = facts.first().and_then(|f| f.loopback.as_ref()) else { continue };
        let names = facts.iter().map(|f| f.name.as_str()).collect();
        found.warn("network", unreached(names, &of.host));
    }
}

fn unreached(mut names: Vec<&str>, host: &str) -> String {
    let (who, have, them) = match &names[..] {
        [one] => (format!("node {one}"), "has an address", "it"),
        _ => {
            names.sort_by_cached_key(|name| counted(name));
            let shown = names.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
            let more = if names.len() > NAMED_MAX { ", …" } else { "" };
            (format!("nodes {shown}{more}"), "have addresses", "them")
        }
    };
    format!(
        "{who} {have} on the loopback of {host}, which no other machine reaches: no job spans {them} \
         and other nodes. Start `tutti up` there with --listen ADDR, or `tutti agent` with --address ADDR"
    )
}

/// Nodes that would have been taken out, had not enough of them been.
fn suspects(world: &World) -> Vec<(String, String)> {
    let of = |node: &Node| Some((node.facts.name.clone(), trouble(world, node, now())?));
    world.engine.state().nodes.values().filter_map(of).collect()
}

fn drained(node: &Node) -> String {
    let drain = node.drain.as_ref();
    let (by, reason) = drain.map_or(("?", ""), |d| (d.by.as_str(), d.reason.as_str()));
    format!("drained by {by}: {reason}; `tutti resume {}` ends it", node.facts.name)
}

fn state_checks(found: &mut Findings, breaches: &[invariants::Breach], state: &State) {
    if breaches.is_empty() {
        found.ok(
            "state",
            format!("every invariant holds over {}", count(state.jobs.len() as u64, "job")),
        );
    }
    for breach in breaches {
        found.error("state", format!("{breach}: this is a bug, please report it"));
    }
}

fn disk(found: &mut Findings, dir: &Path) {
    match DiskRoom::of(dir) {
        Ok(DiskRoom { free, reserve }) => {
            let text = format!("{} MiB are free for {}", free >> 20, dir.display());
            let kept =
                format!("the last {} MiB are kept for the journal", reserve.div_ceil(1 << 20));
            if free < reserve {
                found.error("disk", format!("only {text}: no new jobs are taken, {kept}"));
            } else if free < DISK_LOW_BYTES {
                found.warn("disk", format!("only {text}: {kept}, and below that no job is taken"));
            } else {
                found.ok("disk", text);
            }
        }
        Err(error) => found.error("disk", format!("can't look at {}: {error}", dir.display())),
    }
}

fn archive(found: &mut Findings, archive: &Archive) {
    let folder = archive.folder().display();
    if let Some(trouble) = archive.trouble() {
        found.error("archive", format!("what is over stays in memory: {trouble}"));
        return;
    }
    match archive.span() {
        Ok(None) => found.ok("archive", format!("nothing has left memory for {folder} yet")),
        Ok(Some((first, last, days))) => {
            found.ok(
                "archive",
                format!("{} from {first} to {last} in {folder}", count(days as u64, "day")),
            );
        }
        Err(error) => found.error("archive", crate::error::chain(&error)),
    }
}

fn certificate(found: &mut Findings, subject: &str, until: SystemTime) {
    let renew = match subject {
        "CA" => "see docs/guide/alerts.md, Certificates",
        _ => "restart the controller to make a new one",
    };
    let left = until.duration_since(SystemTime::now()).unwrap_or_default();
    let days = left.as_secs() / 86_400;
    if left.is_zero() {
        found.error(subject, format!("has expired: {renew}"));
    } else if left < EXPIRY_SOON {
        found.warn(subject, format!("ends in {}: {renew}", count(days, "day")));
    } else {
        found.ok(subject, format!("holds for {}", count(days, "more day")));
    }
}

/// Examines the data dir of a controller that does not run: reads the whole journal, and changes
/// nothing.
pub fn examine_at_rest(data_dir: &Path) -> DoctorReport {
    let mut found = Findings::default();
    let path = data_dir.join(crate::start::JOURNAL_FILE);
    let had_cluster = data_dir.join("ca.key").exists();
    match verify(&path, &mut decode) {
        Ok(report) => {
            for finding in &report.findings {
                let level = match finding.level {
                    Level::Note if finding.what == What::Empty && had_cluster => {
                        let empty = "no record was ever written, though this data dir has a cluster's CA: if it was put back from a copy, the copy is not complete";
                        found.error("journal", empty);
                        continue;
                    }
                    Level::Note => FindingLevel::Ok,
                    Level::Warning => FindingLevel::Warning,
                    Level::Error => FindingLevel::Error,
                };
                found.add(level, "journal", finding.to_string());
            }
            if let Some(stats) = report.stats.filter(|_| report.findings.is_empty()) {
                found.ok("journal", format!("{}, all readable", count(stats.last.0, "record")));
            }
        }
        // Whoever holds it is there, whether or not it answers.
        Err(JournalError::InUse { .. }) => found.ok("journal", IN_USE),
        Err(error) => found.error("journal", crate::error::chain(&error)),
    }
    disk(&mut found, data_dir);
    match Ca::load(data_dir).and_then(|ca| Validity::of(ca.der())) {
        Ok(validity) => certificate(&mut found, "CA", validity.until),
        Err(error) => found.error("CA", crate::error::chain(&error)),
    }
    found.report()
}

fn decode(entry: Entry<'_>) -> Result<(), BoxError> {
    match entry {
        Entry::Snapshot { bytes, .. } => drop(codec::decode::<State>(bytes)?),
        Entry::Batch { bytes, .. } => drop(codec::decode::<Vec<Record>>(bytes)?),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_out_of_reach_is_told_in_a_sentence() {
        let one = unreached(vec!["third"], "head");
        assert!(
            one.starts_with("node third has an address on the loopback of head, which"),
            "{one}"
        );
        assert!(one.contains("no job spans it and other nodes"), "{one}");
        let two = unreached(vec!["n10", "n2"], "head");
        assert!(two.starts_with("nodes n2, n10 have addresses on the loopback"), "{two}");
    }
}
