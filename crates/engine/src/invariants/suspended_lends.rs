//! A suspended attempt holds no GPU and no CPU, and the memory of its GPU state is counted; one that
//! runs has nothing in memory.

use tutti_model::{AttemptPhase, SleepStep, State};

pub(super) fn check(state: &State) -> Result<(), String> {
    for (id, _, attempt) in super::attempts(state) {
        for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
            let step = part.sleep_step();
            let right = match attempt.phase {
                AttemptPhase::Starting | AttemptPhase::Running { .. } => step.is_none(),
                AttemptPhase::Suspending { .. } => {
                    matches!(step, Some(SleepStep::Going | SleepStep::Out))
                }
                AttemptPhase::Suspended { .. } => step == Some(SleepStep::Lent),
                AttemptPhase::Waking { .. } => {
                    matches!(step, None | Some(SleepStep::Going | SleepStep::Coming))
                }
                AttemptPhase::Stopping { .. } => true,
            };
            let counted = part.asleep.as_deref().is_none_or(|asleep| {
                let lent = step == Some(SleepStep::Lent);
                let empty = part.gpus.is_empty() && part.cpus == 0;
                let whole = part.gpus.len() == asleep.gpus.len() && part.cpus == asleep.cpus;
                part.mem.0 == asleep.mem.0 + asleep.bytes.0 && if lent { empty } else { whole }
            });
            if !right || !counted {
                return Err(format!("{id} is {:?} with {part:?}", attempt.phase));
            }
        }
        if attempt.is_suspended() && attempt.charge > 0 {
            return Err(format!("{id} is suspended and pays {}", attempt.charge));
        }
    }
    Ok(())
}
