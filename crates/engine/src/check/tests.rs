//! One rule per test: a plan that is accepted, and the one change that makes it wrong.

mod claims;
mod placements;

use std::sync::Arc;

use tutti_model::{
    Bytes, ClaimCause, Elastic, GpuIndex, GpuQuota, JobId, JobSpec, Milli, NewClaim, NodeId,
    PartPlacement, Placement, Plan, Policy, Span, State, Stop, TaskId, Team, Time, Victim,
};

use super::{Violation, check};
use crate::tests::world::{World, ada, gang};
use crate::{Command, Reply};

const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);

/// Two nodes with 4 GPUs each. What is submitted waits: nobody plans but the test.
struct Case {
    world: World,
}

fn case() -> Case {
    Case { world: World::new(&[4, 4]) }
}

impl Case {
    fn waiting(&mut self, spec: JobSpec) -> TaskId {
        let command = Command::Submit { actor: ada(), spec: Box::new(spec), user: None, key: None };
        match self.world.engine.step(command, self.world.now).reply {
            Ok(Reply::Submitted { job, .. }) => TaskId::single(job),
            other => panic!("{other:?}"),
        }
    }

    fn placed(&mut self, spec: JobSpec, parts: Vec<PartPlacement>) -> TaskId {
        let task = self.waiting(spec);
        self.carry_out(place(task, parts));
        task
    }

    /// It has run for a minute.
    fn running(&mut self, spec: JobSpec, parts: Vec<PartPlacement>) -> TaskId {
        let task = self.placed(spec, parts);
        self.world.run_only(task.job);
        self.world.now.0 += 60_000;
        task
    }

    fn carry_out(&mut self, plan: Plan) {
        check(self.state(), &plan, self.world.now).unwrap();
        self.world.carry_out(plan);
    }

    fn state(&self) -> &State {
        self.world.engine.state()
    }

    fn set_policy(&mut self, change: impl FnOnce(&mut Policy)) {
        let mut policy = (*self.state().policy).clone();
        change(&mut policy);
        self.world.set_policy_only(policy);
    }

    fn set_team(&mut self, name: &str, team: Team) {
        self.set_policy(|p| {
            p.teams.insert(name.to_owned(), team);
        });
    }

    #[track_caller]
    fn accepts(&self, plan: &Plan) {
        assert_eq!(check(self.state(), plan, self.world.now), Ok(()));
    }

    #[track_caller]
    fn refuses(&self, plan: &Plan) -> Violation {
        check(self.state(), plan, self.world.now).expect_err("the plan is wrong")
    }

    /// The same with something changed behind the engine's back.
    #[track_caller]
    fn refuses_if(&self, plan: &Plan, change: impl FnOnce(&mut State)) -> Violation {
        let mut state = self.state().clone();
        change(&mut state);
        check(&state, plan, self.world.now).expect_err("the plan is wrong")
    }
}

fn part(node: NodeId, gpus: &[u16]) -> PartPlacement {
    PartPlacement {
        node,
        gpus: gpus.iter().map(|&g| GpuIndex(g)).collect(),
        cpus: 1,
        mem: Bytes(0),
        ranks: 1,
        share: Milli::WHOLE,
    }
}

fn place(task: TaskId, parts: Vec<PartPlacement>) -> Plan {
    Plan { placements: vec![Placement { task, parts }], ..Plan::default() }
}

fn claim(task: TaskId, parts: Vec<PartPlacement>, cause: ClaimCause, victims: Vec<Victim>) -> Plan {
    Plan { claims: vec![NewClaim { task, parts, cause, victims }], ..Plan::default() }
}

fn requeue(task: TaskId, cost: u64) -> Victim {
    Victim { task, how: Stop::Requeue, cost }
}

fn guaranteed(gpus: u32) -> Team {
    let guarantee = GpuQuota { any: gpus, ..GpuQuota::default() };
    Team { guarantee, members: ["*".to_owned()].into(), ..Team::default() }
}

fn of_team(team: &str, spec: JobSpec) -> JobSpec {
    JobSpec { team: Some(team.to_owned()), ..spec }
}

fn of_class(class: &str, spec: JobSpec) -> JobSpec {
    JobSpec { class: Some(class.to_owned()), ..spec }
}

fn elastic(min_nodes: u32, max_nodes: u32) -> JobSpec {
    JobSpec { nodes: None, elastic: Some(Elastic { min_nodes, max_nodes }), ..gang(1, 4) }
}

fn job_mut(state: &mut State, id: JobId) -> &mut tutti_model::Job {
    Arc::make_mut(state.jobs.get_mut(&id).expect("the job exists"))
}

fn spec_mut(state: &mut State, id: JobId) -> &mut JobSpec {
    Arc::make_mut(&mut job_mut(state, id).spec)
}

fn policy_mut(state: &mut State) -> &mut Policy {
    Arc::make_mut(&mut state.policy)
}

fn later(now: Time, secs: u64) -> Time {
    now.plus(Span::secs(secs))
}
