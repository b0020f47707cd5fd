//! Short cases, one per rule: what is asked, what is recorded, what agents are told.

mod gangs;
mod jobs;
mod nodes;
mod world;
