//! `tutti show NODE`: how one node stands, since when, and what is there.

use tutti_model::{TaskId, Time};
use tutti_wire::api::{GpuRow, JobRow, NodeDetail};

use super::nodes::{health, place};
use super::reservations::on_node;
use super::table::{Grid, plain};
use super::topology::ranges;
use super::{count, harmless, milli, time};
use crate::style::{Ink, Style, of_job, of_node};

/// Everything that a page about it needs.
pub struct NodePage<'a> {
    pub node: &'a NodeDetail,
    pub jobs: &'a [JobRow],
    pub gpus: &'a [GpuRow],
    /// Of the controller.
    pub version: &'a str,
}

impl NodePage<'_> {
    pub fn text(&self, now: Time, style: Style, width: Option<u16>) -> String {
        let row = &self.node.row;
        let since = row.since.map_or_else(String::new, |at| {
            format!(" since {} ({})", time::clock(at), time::short(now.since(at)))
        });
        let mut lines = vec![format!(
            "node {}  {}{since}",
            style.paint(Ink::Bold, &harmless(&row.name)),
            style.paint(of_node(row.state), row.state.as_str())
        )];
        lines.extend(self.facts(now).into_iter().map(|(key, value)| format!("  {key:<11}{value}")));
        if !self.jobs.is_empty() {
            lines.extend([String::new(), self.jobs(now, style, width)]);
        }
        lines.join("\n")
    }

    fn facts(&self, now: Time) -> Vec<(&'static str, String)> {
        let (row, f) = (&self.node.row, &self.node.row.facts);
        let mut facts = Vec::new();
        let mut add = |key: &'static str, value: String| {
            if !value.is_empty() {
                facts.push((key, harmless(&value)));
            }
        };
        add("drained", self.drained());
        add("health", health(row).0);
        for finding in &row.findings {
            add("finding", format!("{} (since {})", finding.text, time::clock(finding.since)));
        }
        for reservation in &row.reservations {
            add("reserved", on_node(reservation));
        }
        add("suspect", row.trouble.clone().unwrap_or_default());
        add("address", f.address.clone());
        add("place", Some(place(&row.place)).filter(|p| p != "-").unwrap_or_default());
        let labels: Vec<String> = f.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        add("labels", labels.join(" "));
        add("GPUs", self.gpus());
        add("CPUs", format!("{} of {} in use", row.cpus_used, f.cpus));
        add("memory", format!("{} of {} in use", row.mem_used, f.mem));
        add(
            "heard",
            self.node.sample_age.map_or_else(String::new, |age| {
                format!(
                    "{} ago, at {}",
                    time::short(age),
                    time::clock(Time(now.0.saturating_sub(age.0)))
                )
            }),
        );
        add("agent", self.versions());
        add("isolation", f.isolation.clone());
        add("images", f.runtimes.join(", "));
        facts
    }

    fn drained(&self) -> String {
        let row = &self.node.row;
        let Some(by) = &row.drained_by else { return String::new() };
        match row.drain_reason.as_deref().unwrap_or_default() {
            "" => format!("by {by}"),
            why => format!("by {by}: {why}"),
        }
    }

    fn gpus(&self) -> String {
        let row = &self.node.row;
        let Some(model) = &row.facts.gpu_model else { return "none".to_owned() };
        let simulated = if row.facts.simulated { ", simulated" } else { "" };
        let used = milli(row.gpu_milli_used);
        let busy = busy(self.gpus);
        let busy = if busy.is_empty() { String::new() } else { format!(": {busy}") };
        format!("{} × {model}{simulated}, {used} in use{busy}", row.facts.gpus)
    }

    /// Of this node's GPUs, in thousandths: a job may have others elsewhere.
    fn held_by(&self, job: &JobRow) -> u64 {
        let held = self.gpus.iter().filter(|gpu| gpu.jobs.contains(&job.id)).count();
        held as u64 * u64::from(job.share.0)
    }

    fn versions(&self) -> String {
        let own = &self.node.row.facts.agent_version;
        match own == self.version {
            true => format!("version {own}"),
            false => format!("version {own}; the controller is {}", self.version),
        }
    }

    fn jobs(&self, now: Time, style: Style, width: Option<u16>) -> String {
        let mut grid = Grid::new(&[">ID", "NAME", "USER", "STATE", ">GPUS", ">TIME"], style);
        for job in self.jobs {
            grid.row([
                plain(job.id.to_string()),
                plain(job.name.clone()),
                plain(job.user.clone()),
                (job.state.as_str().to_owned(), of_job(job.state)),
                plain(milli(self.held_by(job))),
                plain(time::short(super::jobs::how_long(job, now))),
            ]);
        }
        format!("{}\n{}", grid.render(width), count(self.jobs.len() as u64, "job"))
    }
}

/// `0-3,6 by 12, 4 by 13+14`, in the order of the GPUs.
fn busy(gpus: &[GpuRow]) -> String {
    let mut held: Vec<(&[TaskId], Vec<u16>)> = Vec::new();
    for gpu in gpus.iter().filter(|gpu| !gpu.jobs.is_empty()) {
        match held.iter_mut().find(|(jobs, _)| *jobs == gpu.jobs) {
            Some((_, indices)) => indices.push(gpu.gpu.0),
            None => held.push((&gpu.jobs, vec![gpu.gpu.0])),
        }
    }
    let words = |(jobs, indices): &(&[TaskId], Vec<u16>)| {
        let jobs: Vec<String> = jobs.iter().map(ToString::to_string).collect();
        format!("{} by {}", ranges(indices), jobs.join("+"))
    };
    held.iter().map(words).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::jobs::tests::row;
    use super::super::nodes::tests::node;
    use super::*;
    use tutti_model::{Bytes, GpuIndex, JobState, NodeReservation};
    use tutti_wire::api::NodeRow;

    fn gpu(index: u16, jobs: &[&str]) -> GpuRow {
        GpuRow {
            node: "n1".into(),
            gpu: GpuIndex(index),
            model: "h100".into(),
            uuid: String::new(),
            mem: Bytes::gib(80),
            simulated: true,
            jobs: jobs.iter().map(|id| id.parse().unwrap()).collect(),
            fenced: None,
            sample: None,
            age: None,
        }
    }

    #[test]
    fn who_has_which_gpus_is_said_in_few_words() {
        let of = |jobs: &[&[&str]]| {
            let gpus: Vec<GpuRow> = (0..).zip(jobs).map(|(n, jobs)| gpu(n, jobs)).collect();
            busy(&gpus)
        };
        assert_eq!(of(&[&["20"], &["20"], &["20"], &[]]), "0-2 by 20");
        assert_eq!(of(&[&["20"], &["7", "8"], &["20"]]), "0,2 by 20, 1 by 7+8");
        assert_eq!(of(&[&[], &[]]), "");
    }

    #[test]
    fn a_node_says_since_when_why_and_what_runs() {
        let maintenance = NodeReservation {
            name: "power work".into(),
            team: None,
            from: Time(7_200_000),
            until: Time(9_000_000),
        };
        let reservations = vec![maintenance];
        let mut row_of = NodeRow { since: Some(Time(1_000)), reservations, ..node() };
        row_of.facts.labels.insert("rack".into(), "r1".into());
        let detail = NodeDetail {
            row: row_of,
            sample: None,
            sample_age: None,
            devices: Vec::new(),
            hardware: None,
        };
        let jobs = [row("7", JobState::Running)];
        let gpus = [gpu(0, &["7"]), gpu(1, &["7"]), gpu(2, &[])];
        let page = NodePage { node: &detail, jobs: &jobs, gpus: &gpus, version: "0.2.0" };
        let text = page.text(Time(3_601_000), Style::PLAIN, None);
        for want in [
            "node n1  draining since ",
            " (1h)",
            "drained    by root: fan",
            "labels     rack=r1",
            "GPUs       8 × h100, simulated, 2 in use: 0-1 by 7",
            "reserved   maintenance 'power work' from ",
            "CPUs       4 of 64 in use",
            "agent      version 0.1.0; the controller is 0.2.0",
            "ID  NAME   USER  STATE    GPUS  TIME",
            " 7  train  ada   running     2",
        ] {
            assert!(text.contains(want), "{want} in\n{text}");
        }
    }
}
