//! Live pages. What a page shows is made once for all who look at it, when something has changed and
//! at most once in a while; each reader gets the difference to what was sent before. A page that
//! nobody looks at costs nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::broadcast;
use tutti_model::TaskId;
use tutti_web::{Event, Shown};

use super::gather;
use crate::api::App;
use crate::lock::lock;

/// Two looks at the same page are at least so far apart, and so many times as long as the first took: a
/// page of a very large cluster takes no more than a small part of one core.
const PACE: Duration = Duration::from_millis(700);
const REST: u32 = 30;
const REST_MAX: Duration = Duration::from_secs(10);
/// Changes that may wait for a reader; one that is slower is sent everything anew.
const BUFFER: usize = 8;

/// A page, with what distinguishes it from others of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    Overview,
    Queue(String),
    Jobs(String),
    Job(TaskId),
    Nodes,
    Node(String),
    Teams,
    /// What the lines of its table are.
    Cost(String),
    Alerts,
    Timeline,
}

impl Topic {
    /// How often it is looked at although no record says so: what machines do is in no record.
    fn every(&self) -> Duration {
        Duration::from_secs(match self {
            Topic::Overview => 2,
            Topic::Nodes | Topic::Node(_) | Topic::Job(_) | Topic::Jobs(_) | Topic::Alerts => 5,
            Topic::Queue(_) | Topic::Teams => 10,
            Topic::Timeline | Topic::Cost(_) => 30,
        })
    }
}

/// How long to rest after a look that took so long.
fn rest(topic: &Topic, took: Duration) -> Duration {
    // All of it is sent again when anything has changed.
    let pace = if *topic == Topic::Timeline { PACE * 6 } else { PACE };
    (took * REST).clamp(pace, REST_MAX)
}

pub type Changes = Arc<Vec<Event>>;

#[derive(Default)]
pub struct Hub {
    channels: Mutex<HashMap<Topic, Arc<Channel>>>,
}

struct Channel {
    sender: broadcast::Sender<Changes>,
    shown: Mutex<Option<Arc<Shown>>>,
}

/// One reader of a page.
pub struct Subscription {
    channel: Arc<Channel>,
    receiver: broadcast::Receiver<Changes>,
    /// What was there when it came.
    first: Option<Changes>,
}

impl Subscription {
    /// What has to be sent next. None when the page has come to its end.
    pub async fn next(&mut self) -> Option<Changes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            match self.receiver.recv().await {
                Ok(changes) => return Some(changes),
                Err(broadcast::error::RecvError::Closed) => return None,
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    let shown = lock(&self.channel.shown);
                    // What is buffered is in what is shown already.
                    self.receiver = self.channel.sender.subscribe();
                    if let Some(shown) = shown.as_ref() {
                        return Some(Arc::new(shown.changes(None)));
                    }
                }
            }
        }
    }
}

impl Hub {
    pub fn subscribe(&self, app: &Arc<App>, topic: Topic) -> Subscription {
        let mut channels = lock(&self.channels);
        let channel = match channels.get(&topic) {
            Some(channel) => Arc::clone(channel),
            None => {
                let channel = Arc::new(Channel {
                    sender: broadcast::Sender::new(BUFFER),
                    shown: Mutex::default(),
                });
                channels.insert(topic.clone(), Arc::clone(&channel));
                tokio::spawn(make(Arc::clone(app), topic, Arc::clone(&channel)));
                channel
            }
        };
        // Under the lock of what is shown, so that nothing is missed or comes twice.
        let shown = lock(&channel.shown);
        let receiver = channel.sender.subscribe();
        let first = shown.as_ref().map(|shown| Arc::new(shown.changes(None)));
        drop(shown);
        Subscription { channel, receiver, first }
    }

    /// True if nobody is left and the page was given up.
    fn leave(&self, topic: &Topic, channel: &Channel) -> bool {
        let mut channels = lock(&self.channels);
        if channel.sender.receiver_count() > 0 {
            return false;
        }
        channels.remove(topic);
        true
    }

    fn give_up(&self, topic: &Topic) {
        lock(&self.channels).remove(topic);
    }
}

/// Makes the page again and again while somebody looks at it.
async fn make(app: Arc<App>, topic: Topic, channel: Arc<Channel>) {
    let mut durable = app.core.feed().durable();
    let mut stopping = app.stopping();
    loop {
        durable.borrow_and_update();
        let began = Instant::now();
        let shown = match gather::shown(&app, &topic).await {
            Ok(shown) => Arc::new(shown),
            Err(problem) => {
                tracing::debug!(?topic, message = problem.error.message, "a live page ends");
                app.dash.hub.give_up(&topic);
                return;
            }
        };
        channel.show(shown);
        tokio::time::sleep(rest(&topic, began.elapsed())).await;
        tokio::select! {
            changed = durable.changed() => if changed.is_err() || durable.borrow().stopped {
                app.dash.hub.give_up(&topic);
                return;
            },
            () = tokio::time::sleep(topic.every()) => {}
            _ = stopping.wait_for(|s| *s) => {
                app.dash.hub.give_up(&topic);
                return;
            }
        }
        if app.dash.hub.leave(&topic, &channel) {
            return;
        }
    }
}

impl Channel {
    fn show(&self, new: Arc<Shown>) {
        let mut shown = lock(&self.shown);
        let changes = new.changes(shown.as_deref());
        *shown = Some(new);
        if !changes.is_empty() {
            // Nobody may be left to hear it.
            let _ = self.sender.send(Arc::new(changes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Arc<Shown> {
        let mut shown = Shown::default();
        shown.regions.insert("a", text.to_owned());
        Arc::new(shown)
    }

    fn subscribe(channel: &Arc<Channel>) -> Subscription {
        let shown = lock(&channel.shown);
        let first = shown.as_ref().map(|shown| Arc::new(shown.changes(None)));
        Subscription { channel: Arc::clone(channel), receiver: channel.sender.subscribe(), first }
    }

    #[test]
    fn what_takes_long_is_made_less_often() {
        let ms = Duration::from_millis;
        assert_eq!(rest(&Topic::Overview, ms(3)), PACE);
        assert_eq!(rest(&Topic::Overview, ms(100)), ms(3000));
        assert_eq!(rest(&Topic::Overview, ms(9000)), REST_MAX);
        assert!(rest(&Topic::Timeline, ms(1)) > PACE);
    }

    #[tokio::test]
    async fn everybody_gets_the_same_and_late_comers_get_all() {
        let channel =
            Arc::new(Channel { sender: broadcast::Sender::new(2), shown: Mutex::default() });
        let mut early = subscribe(&channel);
        channel.show(shown("1"));
        let mut late = subscribe(&channel);
        assert_eq!(early.next().await.unwrap(), late.next().await.unwrap());
        channel.show(shown("1"));
        channel.show(shown("2"));
        let (a, b) = (early.next().await.unwrap(), late.next().await.unwrap());
        assert!(Arc::ptr_eq(&a, &b), "made once");
        assert_eq!(a[0].data, r#"{"a":"2"}"#);
    }

    #[tokio::test]
    async fn a_slow_reader_is_brought_up_to_date() {
        let channel =
            Arc::new(Channel { sender: broadcast::Sender::new(2), shown: Mutex::default() });
        let mut slow = subscribe(&channel);
        (0..9).for_each(|n| channel.show(shown(&n.to_string())));
        assert_eq!(slow.next().await.unwrap()[0].data, r#"{"a":"8"}"#);
        channel.show(shown("9"));
        assert_eq!(slow.next().await.unwrap()[0].data, r#"{"a":"9"}"#);
    }
}
