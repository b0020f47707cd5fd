//! Short cases, one per rule: what is asked, what is recorded, what agents are told.

mod comeback;
mod elastic;
mod findings;
mod forget;
mod gangs;
mod goodput;
mod jobs;
mod keys;
mod limits;
mod nodes;
mod policy;
mod preemption;
mod progress;
mod reasons;
mod restored;
mod serve;
mod serve_between;
mod serve_failing;
mod serve_ports;
mod serve_rollout;
mod serve_routes;
mod suspend;
mod suspension_kept;
mod teams;
mod update;
mod watch;
pub(crate) mod world;
