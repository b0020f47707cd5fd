//! `tutti doctor`.

use serde_json::{Value, json};
use tutti_model::{Finding as HealthFinding, HealthAction, NodeState};
use tutti_wire::api::{DoctorReport, Examination, FindingLevel, NodeRow, Watched};

use super::{count, harmless, time};
use crate::style::{Ink, Style};

pub fn report(report: &DoctorReport, style: Style) -> String {
    let mut lines: Vec<String> = report
        .findings
        .iter()
        .map(|f| {
            let (word, ink) = match f.level {
                FindingLevel::Ok => ("ok", Ink::Green),
                FindingLevel::Warning => ("warning", Ink::Yellow),
                FindingLevel::Error => ("error", Ink::Red),
            };
            let word = style.paint(ink, &format!("{word:<8}"));
            format!("{word} {}: {}", harmless(&f.subject), harmless(&f.message))
        })
        .collect();
    let n = |level| report.findings.iter().filter(|f| f.level == level).count();
    lines.push(match (n(FindingLevel::Error), n(FindingLevel::Warning)) {
        (0, 0) => "all is well".to_owned(),
        (0, w) => format!("no errors, {}", super::count(w as u64, "warning")),
        (e, w) => {
            format!("{}, {}", super::count(e as u64, "error"), super::count(w as u64, "warning"))
        }
    });
    lines.join("\n")
}

pub fn has_errors(report: &DoctorReport) -> bool {
    report.findings.iter().any(|f| f.level == FindingLevel::Error)
}

/// One node, as the controller and its agent see it.
pub struct Node<'a> {
    pub row: &'a NodeRow,
    /// None: its agent did not answer, and this is why.
    pub health: Option<&'a Examination>,
    pub silent: Option<String>,
    /// The controller's version.
    pub controller: &'a str,
}

impl Node<'_> {
    fn findings(&self) -> &[HealthFinding] {
        self.health.map_or(&self.row.findings, |h| &h.findings)
    }

    pub fn text(&self, style: Style) -> String {
        let mut lines = vec![self.state(style)];
        let facts = &self.row.facts;
        if facts.agent_version == self.controller {
            lines.push(line(style, Ink::Green, "ok", "version", &facts.agent_version));
        } else {
            let text = format!("{}, the controller has {}", facts.agent_version, self.controller);
            lines.push(line(style, Ink::Yellow, "warning", "version", &text));
        }
        lines.push(line(style, Ink::Plain, "-", "isolation", &facts.isolation));
        lines.extend(self.findings().iter().map(|f| finding(style, f)));
        match (self.health, &self.silent) {
            (Some(health), _) => lines.extend(health.watched.iter().map(|w| watched(style, w))),
            (None, why) => {
                let why = why.clone().unwrap_or_default();
                lines.push(line(style, Ink::Red, "error", "agent", &why));
            }
        }
        lines.push(self.sum());
        lines.join("\n")
    }

    /// What nobody has heard of for long is not well, whatever was known of it then.
    fn sum(&self) -> String {
        let name = harmless(&self.row.name);
        let known = match exit_of(self.findings()) {
            0 => String::new(),
            _ => format!("; of what was known before, {}", sum(self.findings())),
        };
        match (self.row.state, self.health) {
            (NodeState::Lost, _) => format!(
                "{name} is lost: look at the machine, the network and `tutti agent` on it{known}"
            ),
            (_, None) => format!("the agent of {name} does not answer{known}"),
            (NodeState::Ready, _) => sum(self.findings()),
            (state, _) if exit_of(self.findings()) == 0 => {
                format!("nothing is wrong as far as can be seen, but {name} is {}", state.as_str())
            }
            _ => sum(self.findings()),
        }
    }

    fn state(&self, style: Style) -> String {
        let (word, ink) = match self.row.state {
            NodeState::Ready => ("ok", Ink::Green),
            NodeState::Lost => ("error", Ink::Red),
            _ => ("warning", Ink::Yellow),
        };
        if self.row.state == NodeState::Lost {
            let text = "lost: nothing was heard of it for too long";
            return line(style, ink, word, &self.row.name, text);
        }
        let reason = self.row.drain_reason.as_ref().filter(|r| !r.is_empty());
        let reason = reason.map_or_else(String::new, |r| format!(": {r}"));
        let text = format!("{}{reason}", self.row.state.as_str());
        line(style, ink, word, &self.row.name, &text)
    }

    pub fn exit(&self) -> u8 {
        let state = match self.row.state {
            NodeState::Ready => 0,
            NodeState::Lost => 2,
            _ => 1,
        };
        let silent = if self.health.is_none() { 2 } else { 0 };
        exit_of(self.findings()).max(state).max(silent)
    }

    pub fn json(&self) -> Value {
        json!({
            "node": self.row,
            "health": self.health,
            "agent_error": self.silent,
            "exit": self.exit(),
        })
    }
}

/// This machine.
pub struct Here<'a> {
    pub found: &'a tutti_gpu::Found,
    pub health: &'a Examination,
}

impl Here<'_> {
    pub fn text(&self, style: Style) -> String {
        let hardware = &self.found.hardware;
        let driver =
            hardware.driver.as_deref().map_or_else(String::new, |d| format!(", driver {d}"));
        let gpus = format!("{}{driver}", count(hardware.gpus.len() as u64, "GPU"));
        let mut lines = vec![line(style, Ink::Plain, "-", "devices", &gpus)];
        lines.extend(self.health.findings.iter().map(|f| finding(style, f)));
        lines.extend(self.health.watched.iter().map(|w| watched(style, w)));
        lines.push(sum(&self.health.findings));
        lines.join("\n")
    }
}

/// 0: nothing was found. 1: something to know. 2: something is broken.
pub fn exit_of(findings: &[HealthFinding]) -> u8 {
    match findings.iter().map(|f| f.action).max() {
        None => 0,
        Some(worst) if worst < HealthAction::FenceGpu => 1,
        Some(_) => 2,
    }
}

fn line(style: Style, ink: Ink, word: &str, subject: &str, text: &str) -> String {
    let word = style.paint(ink, &format!("{word:<8}"));
    format!("{word} {}: {}", harmless(subject), harmless(text))
}

fn finding(style: Style, f: &HealthFinding) -> String {
    let broken = f.action >= HealthAction::FenceGpu;
    let (word, ink) = if broken { ("error", Ink::Red) } else { ("warning", Ink::Yellow) };
    let text = format!("{}; {}, since {}", f.text, f.in_words(), time::stamp(f.since));
    line(style, ink, word, &f.key, &text)
}

fn watched(style: Style, w: &Watched) -> String {
    match &w.not {
        None => line(style, Ink::Green, "ok", &w.what, &w.note),
        Some(why) => line(style, Ink::Dim, "not seen", &w.what, why),
    }
}

fn sum(findings: &[HealthFinding]) -> String {
    match exit_of(findings) {
        0 => "nothing is wrong as far as can be seen".to_owned(),
        1 => format!("{}, nothing is broken", count(findings.len() as u64, "note")),
        _ => {
            let broken = findings.iter().filter(|f| f.action >= HealthAction::FenceGpu).count();
            format!("{} to be mended", count(broken as u64, "finding"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_wire::api::Finding;

    #[test]
    fn findings_and_a_sum() {
        let finding = |level, message: &str| Finding {
            level,
            subject: "journal".into(),
            message: message.into(),
        };
        let mut r = DoctorReport { findings: vec![finding(FindingLevel::Ok, "12 records")] };
        assert_eq!(report(&r, Style::PLAIN), "ok       journal: 12 records\nall is well");
        r.findings.push(finding(FindingLevel::Error, "record 7 is missing"));
        assert!(report(&r, Style::PLAIN).ends_with("record 7 is missing\n1 error, 0 warnings"));
        assert!(has_errors(&r));
    }

    #[test]
    fn a_lost_node_is_not_called_well() {
        use super::super::nodes::tests::node;
        let row = || NodeRow { state: NodeState::Ready, drain_reason: None, ..node() };
        let lost = NodeRow { state: NodeState::Lost, ..row() };
        let silent = || Some("node n1 is not connected".to_owned());
        let told = |row: &NodeRow, health: Option<&Examination>| {
            let node = Node { row, health, silent: silent(), controller: "0.1.0" };
            (node.text(Style::PLAIN), node.exit())
        };
        let (text, exit) = told(&lost, None);
        assert_eq!(exit, 2);
        assert!(text.starts_with("error    n1: lost: nothing was heard of it"), "{text}");
        assert!(text.lines().last().unwrap().starts_with("n1 is lost: look at"), "{text}");
        let (text, exit) = told(&row(), None);
        assert_eq!(exit, 2);
        assert!(text.ends_with("the agent of n1 does not answer"), "{text}");
        let well = Examination { findings: Vec::new(), watched: Vec::new() };
        let (text, exit) = told(&row(), Some(&well));
        assert_eq!(exit, 0);
        assert!(text.ends_with("nothing is wrong as far as can be seen"), "{text}");
        let drained = NodeRow { state: NodeState::Drained, ..row() };
        let (text, exit) = told(&drained, Some(&well));
        assert_eq!(exit, 1);
        assert!(text.ends_with("but n1 is drained"), "{text}");
    }
}
