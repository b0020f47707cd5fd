//! Whatever happens, what is under way is counted right and comes back to nothing.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use tutti_model::RoutePolicy;

use super::make;
use crate::logic::{Ask, Choice, Endpoint, Outcome, Pick, PromptBlocks, ServerMetrics};

#[derive(Clone, Debug)]
enum Step {
    Pick {
        prompt: u64,
        sticky: u8,
    },
    Answered(usize),
    Finish(usize, Outcome),
    Probe(u64, bool),
    Own(u64, u32),
    /// Replicas of the next route, as bits, and those that drain.
    Update(u8, u8),
    Pass(u64),
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Ok),
        2 => Just(Outcome::Failed),
        1 => Just(Outcome::Refused),
        1 => Just(Outcome::Cancelled),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u64..5, 0u8..5).prop_map(|(prompt, sticky)| Step::Pick { prompt, sticky }),
        2 => (0usize..30).prop_map(Step::Answered),
        6 => (0usize..30, outcome()).prop_map(|(at, outcome)| Step::Finish(at, outcome)),
        3 => (1u64..6, prop::bool::weighted(0.8)).prop_map(|(job, good)| Step::Probe(job, good)),
        1 => (1u64..6, 0u32..10).prop_map(|(job, waiting)| Step::Own(job, waiting)),
        1 => (0u8..32, 0u8..32).prop_map(|(listed, draining)| Step::Update(listed, draining)),
        1 => (1u64..40_000).prop_map(Step::Pass),
    ]
}

struct Run {
    endpoint: Endpoint,
    route: tutti_model::EndpointRoute,
    open: Vec<Choice>,
    now: Instant,
}

impl Run {
    fn new(policy: RoutePolicy, max_in_flight: Option<u32>) -> Self {
        let mut route = make::route(policy, 5);
        route.replicas[4].revision = 2;
        route.slow_start = tutti_model::Span::secs(10);
        route.max_in_flight = max_in_flight;
        let now = Instant::now();
        Run { endpoint: make::ready(&route, now), route, open: Vec::new(), now }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Pick { prompt, sticky } => return self.pick(prompt, sticky),
            Step::Answered(at) => {
                if let Some(choice) = self.open.get(at) {
                    self.endpoint.answered(choice.key);
                }
            }
            Step::Finish(at, outcome) => {
                if at < self.open.len() {
                    let choice = self.open.swap_remove(at);
                    self.endpoint.finished(choice.key, outcome, self.now);
                }
            }
            Step::Probe(job, good) => {
                let result = if good { Ok(()) } else { Err("503".to_owned()) };
                self.endpoint.probed(make::key(job), result, self.now);
            }
            Step::Own(job, waiting) => {
                let mut metrics = ServerMetrics::default();
                metrics.load.waiting = waiting;
                self.endpoint.own_load(make::key(job), &metrics, self.now);
            }
            Step::Update(listed, draining) => {
                self.route.replicas = (1..=5)
                    .filter(|job| listed & (1 << (job - 1)) != 0)
                    .map(|job| make::replica(job, 1 + u32::from(job == 5)))
                    .collect();
                for replica in &mut self.route.replicas {
                    replica.draining = draining & (1 << (replica.job.0 - 1)) != 0;
                }
                self.endpoint.update(&self.route, self.now);
            }
            Step::Pass(ms) => self.now += Duration::from_millis(ms),
        }
        Ok(())
    }

    fn pick(&mut self, prompt: u64, sticky: u8) -> Result<(), TestCaseError> {
        let blocks = PromptBlocks::from_hashes((0..prompt * 3).map(|n| n + prompt * 100).collect());
        let value = format!("v{sticky}");
        let ask = Ask { prompt: Some(&blocks), sticky: (sticky > 0).then_some(value.as_str()) };
        let room = self.endpoint.has_room(self.now);
        let picked = self.endpoint.pick(&ask, &[], self.now);
        prop_assert_eq!(room, matches!(picked, Pick::Replica(_)), "room is what a pick finds");
        let Pick::Replica(choice) = picked else { return Ok(()) };
        let listed = self.route.replicas.iter().find(|r| choice.key == (*r).into());
        prop_assert!(listed.is_some_and(|replica| !replica.draining), "{:?}", choice);
        prop_assert!(choice.prefix_hit_blocks <= choice.prefix_blocks);
        self.open.push(choice);
        if let Some(max) = self.route.max_in_flight {
            prop_assert!(self.endpoint.replicas(self.now).all(|view| view.in_flight() <= max));
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn what_is_under_way_is_what_was_picked_and_not_finished(
        policy in prop::sample::select(RoutePolicy::ALL.to_vec()),
        max_in_flight in prop::option::of(1u32..4),
        split in any::<bool>(),
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut run = Run::new(policy, max_in_flight);
        if split {
            run.route.split = make::shares(&[(1, 800), (2, 200)]);
            run.endpoint.update(&run.route, run.now);
        }
        for step in &steps {
            run.step(step)?;
            prop_assert_eq!(run.endpoint.in_flight() as usize, run.open.len(), "after {:?}", step);
        }
        for choice in std::mem::take(&mut run.open) {
            run.endpoint.finished(choice.key, Outcome::Cancelled, run.now);
        }
        prop_assert_eq!(run.endpoint.in_flight(), 0);
        prop_assert_eq!(run.endpoint.replicas(run.now).count(), run.route.replicas.len());
    }
}
