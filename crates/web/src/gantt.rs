//! Who had which GPU when, in a few bytes for each bar, and what of it has changed.
//!
//! ```text
//!  gantt: nodes, jobs by id, all bars        sent when nodes come or go
//!  bars:  jobs that are new, bars that are new, longer or over, bars that are gone
//! ```

use std::collections::BTreeMap;

use serde::Serialize;
use tutti_model::TaskId;

use crate::live::Event;

/// A bar's job, the place of its node, and when it began, in seconds.
type Key = (TaskId, usize, u64);

/// Lanes of its node, until when (0: it goes on), and how it ended.
type Rest = (Vec<u16>, u64, u8);

/// A node's name, how many GPUs it has, and how many lanes: one for each GPU, and below them as many as are needed
/// for what has none.
pub type NodeLanes = (String, u16, u16);

/// Name and user.
type JobWords = (String, String);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gantt {
    /// Seconds.
    pub from: u64,
    /// In the order of the picture.
    pub nodes: Vec<NodeLanes>,
    pub jobs: BTreeMap<TaskId, JobWords>,
    pub bars: BTreeMap<Key, Rest>,
    /// Of nodes by their place: how many bars have no lane, for there are too many at once.
    pub more: BTreeMap<usize, usize>,
}

/// As it is sent: job, node, from, lanes, until, end.
type SentBar<'a> = (TaskId, usize, u64, &'a [u16], u64, u8);

#[derive(Serialize)]
struct Whole<'a> {
    from: u64,
    nodes: &'a [NodeLanes],
    jobs: &'a BTreeMap<TaskId, JobWords>,
    bars: Vec<SentBar<'a>>,
    more: &'a BTreeMap<usize, usize>,
}

#[derive(Serialize)]
struct Changed<'a> {
    from: u64,
    jobs: BTreeMap<&'a TaskId, &'a JobWords>,
    set: Vec<SentBar<'a>>,
    gone: Vec<&'a Key>,
    more: &'a BTreeMap<usize, usize>,
}

fn sent<'a>((key, rest): (&Key, &'a Rest)) -> SentBar<'a> {
    let ((task, node, from), (gpus, until, end)) = (key, rest);
    (*task, *node, *from, gpus.as_slice(), *until, *end)
}

impl Gantt {
    pub fn changes(&self, before: Option<&Gantt>) -> Option<Event> {
        match before {
            Some(before) if before == self => None,
            Some(before) if before.nodes == self.nodes => Some(self.changed(before)),
            _ => Some(self.whole()),
        }
    }

    fn whole(&self) -> Event {
        let whole = Whole {
            from: self.from,
            nodes: &self.nodes,
            jobs: &self.jobs,
            bars: self.bars.iter().map(sent).collect(),
            more: &self.more,
        };
        Event::json("gantt", &whole)
    }

    fn changed(&self, before: &Gantt) -> Event {
        let new = |(id, words): &(&TaskId, &JobWords)| before.jobs.get(id) != Some(*words);
        let other = |(key, rest): &(&Key, &Rest)| before.bars.get(key) != Some(*rest);
        let gone = before.bars.keys().filter(|key| !self.bars.contains_key(key));
        let changed = Changed {
            from: self.from,
            jobs: self.jobs.iter().filter(new).collect(),
            set: self.bars.iter().filter(other).map(sent).collect(),
            gone: gone.collect(),
            more: &self.more,
        };
        Event::json("bars", &changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tutti_model::JobId;

    fn gantt(bars: &[(u64, u64, u64)]) -> Gantt {
        let task = |job: u64| TaskId::single(JobId(job));
        let bar = |&(job, from, until): &(u64, u64, u64)| {
            ((task(job), 1, from), (vec![0, 1], until, u8::from(until > 0)))
        };
        Gantt {
            from: 0,
            nodes: vec![("n1".into(), 8, 8), ("n2".into(), 8, 8)],
            jobs: bars.iter().map(|bar| (task(bar.0), ("train".into(), "ada".into()))).collect(),
            bars: bars.iter().map(bar).collect(),
            more: BTreeMap::new(),
        }
    }

    fn told(event: Option<Event>) -> (&'static str, Value) {
        let event = event.expect("something has changed");
        (event.name, serde_json::from_str(&event.data).unwrap())
    }

    #[test]
    fn the_first_time_all_is_sent_and_then_what_changed() {
        let before = gantt(&[(4, 10, 0), (5, 10, 0), (6, 20, 0)]);
        let (name, whole) = told(before.changes(None));
        assert_eq!((name, whole["bars"].as_array().unwrap().len()), ("gantt", 3));
        assert_eq!(whole["bars"][0], json!(["4", 1, 10, [0, 1], 0, 0]));
        assert_eq!(whole["jobs"]["6"], json!(["train", "ada"]));
        assert_eq!(before.changes(Some(&before)), None);
        let after = gantt(&[(5, 10, 25), (6, 20, 0), (7, 30, 0)]);
        let (name, changed) = told(after.changes(Some(&before)));
        let wanted = json!({
            "from": 0, "jobs": { "7": ["train", "ada"] },
            "set": [["5", 1, 10, [0, 1], 25, 1], ["7", 1, 30, [0, 1], 0, 0]],
            "gone": [["4", 1, 10]], "more": {},
        });
        assert_eq!((name, changed), ("bars", wanted));
    }

    #[test]
    fn a_node_or_a_lane_more_is_a_new_picture() {
        let before = gantt(&[(4, 10, 0)]);
        let mut wider = before.clone();
        wider.nodes[0].2 = 9;
        assert_eq!(told(wider.changes(Some(&before))).0, "gantt");
        let mut after = before.clone();
        after.nodes.push(("n3".into(), 8, 8));
        assert_eq!(told(after.changes(Some(&before))).0, "gantt");
    }
}
