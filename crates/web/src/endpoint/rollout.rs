//! The way from one revision to another, as steps.

use maud::{Markup, html};
use tutti_model::{Rollout, RolloutStage};
use tutti_wire::api::{EndpointRow, RevisionRow};

use crate::words;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Canary,
    Rolling,
    Watching,
}

/// What is done, where it is and what comes; of one that goes back there is but one step.
fn steps(stage: RolloutStage, canary: bool) -> Vec<Step> {
    let begins = match stage {
        RolloutStage::Back => return Vec::new(),
        RolloutStage::Canary { .. } => true,
        _ => canary,
    };
    let all = [Step::Canary, Step::Rolling, Step::Watching];
    all.into_iter().filter(|step| begins || *step != Step::Canary).collect()
}

fn at(stage: RolloutStage) -> Option<Step> {
    match stage {
        RolloutStage::Canary { .. } => Some(Step::Canary),
        RolloutStage::Rolling => Some(Step::Rolling),
        RolloutStage::Watching { .. } => Some(Step::Watching),
        RolloutStage::Back => None,
    }
}

/// `canary`: it began with one. `fresh` of `want` replicas are where it leads to.
pub fn draw(rollout: &Rollout, canary: bool, fresh: u64, want: u64) -> Markup {
    let Rollout { from, to, began_at, stage } = rollout;
    let goal = if *stage == RolloutStage::Back { from } else { to };
    html! {
        section.panel data-testid="rollout" {
            h2 {
                @if *stage == RolloutStage::Back { "Back from revision " (to) " to " (from) }
                @else { "From revision " (from) " to " (to) }
            }
            @let steps = steps(*stage, canary);
            @if !steps.is_empty() {
                ol.steps { @for step in steps { (step_item(step, *stage)) } }
            }
            p {
                (fresh) " of " (words::count(want, "replica")) " answer with revision " (goal)
                span.sub { ", began " (words::ago(*began_at)) " ago" }
            }
            (words::meter(&format!("Replicas with revision {goal}"), fresh, want))
        }
    }
}

fn step_item(step: Step, stage: RolloutStage) -> Markup {
    let now = at(stage);
    let (class, sign) = match now {
        Some(now) if step < now => ("done", "✓"),
        Some(now) if step == now => ("now", "●"),
        _ => ("later", "○"),
    };
    html! {
        li.(class) aria-current=[(now == Some(step)).then_some("step")] {
            span.sign aria-hidden="true" { (sign) } " "
            @match (step, stage) {
                (Step::Canary, RolloutStage::Canary { percent, since }) => {
                    "canary: " (percent) " % of requests"
                    @if let Some(since) = since { span.sub { ", looked at for " (words::ago(since)) } }
                    @else { span.sub { ", its replicas come" } }
                }
                (Step::Canary, _) => "canary",
                (Step::Rolling, _) => "replica by replica",
                (Step::Watching, RolloutStage::Watching { until }) => {
                    "watched" span.sub { ", done " (words::ahead(until)) }
                }
                (Step::Watching, _) => "watched",
            }
        }
    }
}

/// Whether a revision serves, comes, goes or was taken back.
pub fn standing(revision: &RevisionRow, row: &EndpointRow) -> Markup {
    let number = revision.number;
    let rollout = row.rollout.as_ref();
    let back = rollout.is_some_and(|rollout| rollout.stage == RolloutStage::Back);
    html! {
        @if let Some(why) = &revision.taken_back {
            (words::badge("failed", "✕", "taken back")) " " (why)
        } @else if rollout.is_some_and(|rollout| rollout.to == number) {
            @if back { (words::badge("draining", "◑", "goes")) }
            @else { (words::badge("starting", "◔", "comes")) }
        } @else if rollout.is_some_and(|rollout| rollout.from == number) {
            @if back { (words::badge("starting", "◔", "comes back")) }
            @else { (words::badge("ready", "●", "serves")) }
        } @else if number == row.revision { (words::badge("ready", "●", "serves")) }
        @else { span.sub { "before" } }
    }
}
