//! Live pages. What a page shows is made once for all who look at it, when something has changed and
//! at most once in a while; each reader gets the difference to what was sent before. A page that
//! nobody looks at costs nothing, and all pages together no more than a small part of one core.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{broadcast, watch};
use tutti_model::{ReportBy, Seq, TaskId};
use tutti_web::{Event, Shown};

use super::assets::visible_json;
use super::gather;
use crate::api::{App, Problem, sse};
use crate::core::Stopped;
use crate::feed::Durable;
use crate::lock::lock;

/// Two looks at the same page are at least so far apart.
const PACE: Duration = Duration::from_millis(700);
/// And so many times as long as the first took, once for each page that somebody looks at: together
/// they take one part in so many of a core, whoever looks at what.
const REST: u32 = 40;
/// What is older is hardly live; very many pages of a very large cluster take more instead.
const REST_MAX: Duration = Duration::from_secs(30);
/// Changes that may wait for a reader; one that is slower is sent everything anew.
const BUFFER: usize = 8;

/// A page, with what distinguishes it from others of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    Overview,
    Queue(String),
    Jobs(String),
    Job(TaskId),
    Endpoints(String),
    Endpoint(String),
    Nodes,
    Node(String),
    Teams,
    /// What the lines of its table are.
    Cost(ReportBy),
    Alerts,
    Timeline,
}

impl Topic {
    /// How often it is looked at although no record says so: what machines do is in no record.
    fn every(&self) -> Duration {
        Duration::from_secs(match self {
            Topic::Overview => 2,
            Topic::Nodes | Topic::Node(_) | Topic::Job(_) | Topic::Jobs(_) | Topic::Alerts => 5,
            Topic::Endpoints(_) | Topic::Endpoint(_) => 5,
            Topic::Queue(_) | Topic::Teams => 10,
            Topic::Timeline | Topic::Cost(_) => 30,
        })
    }
}

/// How long to rest after a look that took so long, while so many pages are looked at.
fn rest(took: Duration, pages: usize) -> Duration {
    let pages = u32::try_from(pages.max(1)).unwrap_or(u32::MAX);
    took.saturating_mul(REST.saturating_mul(pages)).clamp(PACE, REST_MAX)
}

/// As it is sent, made once for all who get it.
fn rendered(events: &[Event]) -> Bytes {
    let mut text = String::new();
    events.iter().for_each(|event| sse::put(&mut text, event.name, &event.data));
    // Markup and names alike: what the page shows as escapes comes as escapes.
    Bytes::from(visible_json(text))
}

type Channels = Mutex<HashMap<Topic, Arc<Channel>>>;

#[derive(Default)]
pub struct Hub {
    channels: Arc<Channels>,
}

/// Held by the hub and by whoever makes the page, and by nobody else: when both have let go of it,
/// the sender is gone, and readers hear that the page has come to its end.
struct Channel {
    sender: broadcast::Sender<Bytes>,
    page: Arc<Mutex<Page>>,
}

#[derive(Default)]
struct Page {
    shown: Option<Shown>,
    /// All of that as it is sent, if somebody has needed it.
    whole: Option<Bytes>,
    /// Why it came to its end.
    problem: Option<Problem>,
}

impl Page {
    /// What a reader gets who has nothing.
    fn everything(&mut self) -> Option<Bytes> {
        let shown = self.shown.as_ref()?;
        Some(self.whole.get_or_insert_with(|| rendered(&shown.changes(None))).clone())
    }
}

/// One reader of a page.
pub struct Subscription {
    page: Arc<Mutex<Page>>,
    receiver: broadcast::Receiver<Bytes>,
    /// What was there when it came.
    first: Option<Bytes>,
}

impl Subscription {
    /// What has to be sent next. None when the page has come to its end.
    pub async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            match self.receiver.recv().await {
                Ok(changes) => return Some(changes),
                Err(broadcast::error::RecvError::Closed) => return None,
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    let mut page = lock(&self.page);
                    // What is buffered is in what is shown already.
                    self.receiver = self.receiver.resubscribe();
                    if let Some(everything) = page.everything() {
                        return Some(everything);
                    }
                }
            }
        }
    }

    /// Why the page has come to its end.
    pub fn problem(&self) -> Problem {
        let known = lock(&self.page).problem.clone();
        known.unwrap_or_else(|| {
            Problem::unavailable("this page has come to its end").hint("load it again")
        })
    }
}

impl Hub {
    pub fn subscribe(&self, app: &Arc<App>, topic: Topic) -> Subscription {
        let (subscription, maker) = self.join(topic);
        if let Some(maker) = maker {
            tokio::spawn(make(Arc::clone(app), maker));
        }
        subscription
    }

    /// One reader more and, if it is the first, what whoever makes the page needs.
    fn join(&self, topic: Topic) -> (Subscription, Option<Maker>) {
        let mut channels = lock(&self.channels);
        if let Some(channel) = channels.get(&topic) {
            return (channel.subscribe(), None);
        }
        let channel = Arc::new(Channel::new(BUFFER));
        channels.insert(topic.clone(), Arc::clone(&channel));
        let subscription = channel.subscribe();
        let maker = Maker { channels: Arc::clone(&self.channels), topic, channel };
        (subscription, Some(maker))
    }
}

/// Whoever makes a page. When that ends, in whatever way, the page is given up: its readers hear of
/// it, and the next who comes has it made anew.
struct Maker {
    channels: Arc<Channels>,
    topic: Topic,
    channel: Arc<Channel>,
}

impl Maker {
    /// True if nobody is left and the page was given up.
    fn leave(&self) -> bool {
        let mut channels = lock(&self.channels);
        if self.channel.sender.receiver_count() > 0 {
            return false;
        }
        self.give_up(&mut channels);
        true
    }

    fn give_up(&self, channels: &mut HashMap<Topic, Arc<Channel>>) {
        // Once it is given up, somebody else may have begun it anew.
        if channels.get(&self.topic).is_some_and(|there| Arc::ptr_eq(there, &self.channel)) {
            channels.remove(&self.topic);
        }
    }

    /// Pages that somebody looks at.
    fn pages(&self) -> usize {
        let channels = lock(&self.channels);
        channels.values().filter(|channel| channel.sender.receiver_count() > 0).count()
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.give_up(&mut lock(&self.channels));
    }
}

/// What says that a page may look different now.
enum Wake {
    Any(watch::Receiver<Durable>),
    Job(watch::Receiver<Seq>),
}

impl Wake {
    fn of(app: &App, topic: &Topic) -> Wake {
        let feed = app.core.feed();
        match topic {
            // What other jobs mean for it is seen soon enough.
            Topic::Job(id) => Wake::Job(feed.watch_job(id.job)),
            _ => Wake::Any(feed.durable()),
        }
    }

    fn mark_unchanged(&mut self) {
        match self {
            Wake::Any(durable) => durable.mark_unchanged(),
            Wake::Job(job) => job.mark_unchanged(),
        }
    }

    async fn changed(&mut self) -> Result<(), Stopped> {
        match self {
            Wake::Any(durable) => {
                durable.changed().await.map_err(|_| Stopped)?;
                let stopped = durable.borrow().stopped;
                if stopped { Err(Stopped) } else { Ok(()) }
            }
            Wake::Job(job) => job.changed().await.map_err(|_| Stopped),
        }
    }
}

/// Makes the page again and again while somebody looks at it.
async fn make(app: Arc<App>, maker: Maker) {
    let topic = &maker.topic;
    let mut wake = Wake::of(&app, topic);
    let mut stopping = app.stopping();
    loop {
        wake.mark_unchanged();
        let began = Instant::now();
        match gather::shown(&app, topic).await {
            Ok(shown) => maker.channel.show(shown),
            Err(problem) => {
                tracing::debug!(?topic, message = problem.error.message, "a live page ends");
                lock(&maker.channel.page).problem = Some(problem);
                return;
            }
        }
        tokio::time::sleep(rest(began.elapsed(), maker.pages())).await;
        tokio::select! {
            changed = wake.changed() => if changed.is_err() {
                return;
            },
            () = tokio::time::sleep(topic.every()) => {}
            _ = stopping.wait_for(|s| *s) => return,
        }
        if maker.leave() {
            return;
        }
    }
}

impl Channel {
    fn new(buffer: usize) -> Channel {
        Channel { sender: broadcast::Sender::new(buffer), page: Arc::default() }
    }

    fn subscribe(&self) -> Subscription {
        // Under the lock of what is shown, so that nothing is missed or comes twice.
        let mut page = lock(&self.page);
        let receiver = self.sender.subscribe();
        Subscription { page: Arc::clone(&self.page), receiver, first: page.everything() }
    }

    fn show(&self, new: Shown) {
        let mut page = lock(&self.page);
        let changes = new.changes(page.shown.as_ref());
        page.shown = Some(new);
        if !changes.is_empty() {
            page.whole = None;
            // Nobody may be left to hear it.
            let _ = self.sender.send(rendered(&changes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Shown {
        let mut shown = Shown::default();
        shown.regions.insert("a", text.to_owned());
        shown
    }

    fn sent(text: &str) -> Bytes {
        format!("event: html\ndata: {{\"a\":\"{text}\"}}\n\n").into()
    }

    #[test]
    fn names_can_t_turn_a_live_row_around() {
        let names = serde_json::json!(["a\u{202e}b"]);
        let events = shown("<td>é\u{2066}</td>").chart("t", &names).changes(None);
        let text = String::from_utf8(rendered(&events).to_vec()).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let data: Vec<serde_json::Value> = data.map(|d| serde_json::from_str(d).unwrap()).collect();
        assert_eq!(data[0]["a"], "<td>é\\u{2066}</td>");
        assert_eq!(data[1]["series"][0], "a\\u{202e}b");
    }

    #[test]
    fn what_takes_long_is_made_less_often() {
        let ms = Duration::from_millis;
        assert_eq!(rest(ms(3), 1), PACE);
        assert_eq!(rest(ms(100), 1), ms(4000));
        assert_eq!(rest(ms(9000), 1), REST_MAX);
    }

    #[test]
    fn ten_pages_cost_no_more_than_one() {
        for took in [2, 10, 50].map(Duration::from_millis) {
            let round = took + rest(took, 10);
            let share = 10.0 * took.as_secs_f64() / round.as_secs_f64();
            assert!(share < 0.03, "{share} of a core, at {took:?} each");
        }
    }

    #[tokio::test]
    async fn everybody_gets_the_same_and_late_comers_get_all() {
        let channel = Channel::new(2);
        let mut early = channel.subscribe();
        channel.show(shown("1"));
        let mut late = channel.subscribe();
        assert_eq!(early.next().await.unwrap(), late.next().await.unwrap());
        channel.show(shown("1"));
        channel.show(shown("2"));
        let (a, b) = (early.next().await.unwrap(), late.next().await.unwrap());
        assert_eq!(a.as_ptr(), b.as_ptr(), "made once");
        assert_eq!(a, sent("2"));
        let (mut third, mut fourth) = (channel.subscribe(), channel.subscribe());
        let (a, b) = (third.next().await.unwrap(), fourth.next().await.unwrap());
        assert_eq!((a.as_ptr(), &a), (b.as_ptr(), &sent("2")), "and so is all of it");
    }

    #[tokio::test]
    async fn a_slow_reader_is_brought_up_to_date() {
        let channel = Channel::new(2);
        let mut slow = channel.subscribe();
        (0..9).for_each(|n| channel.show(shown(&n.to_string())));
        assert_eq!(slow.next().await.unwrap(), sent("8"));
        channel.show(shown("9"));
        assert_eq!(slow.next().await.unwrap(), sent("9"));
    }

    #[tokio::test]
    async fn readers_hear_that_a_page_has_come_to_its_end() {
        let hub = Hub::default();
        let (mut early, maker) = hub.join(Topic::Nodes);
        let maker = maker.expect("the first has it made");
        let (mut late, other) = hub.join(Topic::Nodes);
        assert!(other.is_none(), "made once");
        maker.channel.show(shown("1"));
        lock(&maker.channel.page).problem = Some(Problem::not_found("gone"));
        drop(maker);
        for reader in [&mut early, &mut late] {
            assert!(reader.next().await.is_some());
            assert!(reader.next().await.is_none());
            assert_eq!(reader.problem(), Problem::not_found("gone"));
        }
        assert!(hub.join(Topic::Nodes).1.is_some(), "the next has it made anew");
    }

    async fn breaks(_maker: Option<Maker>) {
        panic!("while it is made");
    }

    #[tokio::test]
    async fn a_panic_ends_the_page_too() {
        let hub = Hub::default();
        let (mut reader, maker) = hub.join(Topic::Nodes);
        assert!(tokio::spawn(breaks(maker)).await.is_err());
        assert!(reader.next().await.is_none());
        assert!(lock(&hub.channels).is_empty());
    }

    #[test]
    fn a_page_without_readers_is_given_up_and_one_begun_since_is_not() {
        let hub = Hub::default();
        let (reader, maker) = hub.join(Topic::Nodes);
        let maker = maker.expect("the first has it made");
        assert!(!maker.leave() && maker.pages() == 1);
        drop(reader);
        assert!(maker.pages() == 0 && maker.leave());
        let (_reader, anew) = hub.join(Topic::Nodes);
        drop(maker);
        assert!(anew.is_some() && hub.join(Topic::Nodes).1.is_none());
    }
}
