//! When: the order of micro-batches in a stage (1F1B), and the learning rate of a step.

use crate::config::OptimConfig;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Forward(usize),
    Backward(usize),
}

/// One forward, one backward: a stage runs ahead only as far as the stages behind it are deep, so
/// that it never holds more micro-batches than there are stages.
pub fn one_forward_one_backward(stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
    let ahead = (stages - 1 - stage).min(micro_batches);
    let mut actions: Vec<_> = (0..ahead).map(Action::Forward).collect();
    for next in ahead..micro_batches {
        actions.push(Action::Forward(next));
        actions.push(Action::Backward(next - ahead));
    }
    actions.extend((micro_batches - ahead..micro_batches).map(Action::Backward));
    actions
}

/// Linear from nothing, then a cosine down to the floor. Steps count from 0.
pub fn learning_rate(config: &OptimConfig, step: u64, steps: u64) -> f64 {
    if step < config.warmup {
        return config.lr * (step + 1) as f64 / config.warmup as f64;
    }
    let span = steps.saturating_sub(config.warmup).max(1) as f64;
    let done = ((step - config.warmup) as f64 / span).min(1.0);
    let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
    config.lr * (config.lr_floor + (1.0 - config.lr_floor) * cosine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_micro_batch_goes_forward_then_backward_once() {
        for stages in 1..6 {
            for micro_batches in 1..9 {
                for stage in 0..stages {
                    check_order(stage, stages, micro_batches);
                }
            }
        }
    }

    fn check_order(stage: usize, stages: usize, micro_batches: usize) {
        let actions = one_forward_one_backward(stage, stages, micro_batches);
        assert_eq!(actions.len(), 2 * micro_batches);
        let (mut forward, mut backward) = (0, 0);
        for action in actions {
            match action {
                Action::Forward(micro) => {
                    assert_eq!(micro, forward);
                    forward += 1;
                }
                Action::Backward(micro) => {
                    assert_eq!(micro, backward);
                    backward += 1;
                }
            }
            assert!(backward <= forward);
            assert!(forward - backward <= stages - stage, "holds more than the depth behind it");
        }
        assert_eq!((forward, backward), (micro_batches, micro_batches));
    }

    #[test]
    fn the_last_stage_turns_each_micro_batch_around_at_once() {
        use Action::{Backward, Forward};
        let order = one_forward_one_backward(1, 2, 2);
        assert_eq!(order, [Forward(0), Backward(0), Forward(1), Backward(1)]);
        let order = one_forward_one_backward(0, 2, 2);
        assert_eq!(order, [Forward(0), Forward(1), Backward(0), Backward(1)]);
    }

    #[test]
    fn the_rate_rises_to_its_peak_and_falls_to_its_floor() {
        let config = OptimConfig { lr: 1.0, lr_floor: 0.1, warmup: 10, ..OptimConfig::default() };
        let rate = |step| learning_rate(&config, step, 110);
        assert!((rate(0) - 0.1).abs() < 1e-12);
        assert!((rate(9) - 1.0).abs() < 1e-12);
        assert!((rate(10) - 1.0).abs() < 1e-12);
        assert!((rate(60) - 0.55).abs() < 1e-12);
        assert!((rate(110) - 0.1).abs() < 1e-12);
        assert!((rate(500) - 0.1).abs() < 1e-12);
        assert!((11..110).all(|step| rate(step) <= rate(step - 1)));
    }
}
