//! A network that is late, loses and repeats. Within one session messages keep their order, as on
//! a TCP stream; a message that is lost without the session breaking is worse than TCP does.

use std::collections::VecDeque;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tutti_model::{Finding, Greeting, Order, PartReport, Time};

#[derive(Clone, Debug)]
pub enum ToController {
    Hello(Box<Greeting>),
    Heartbeat(Vec<PartReport>),
    Report(PartReport),
    Findings(Vec<Finding>),
    Closed,
}

/// Both directions between one node and the controller.
#[derive(Default)]
pub struct Link {
    pub session: u64,
    pub cut: bool,
    up: VecDeque<(Time, u64, ToController)>,
    down: VecDeque<(Time, u64, Order)>,
}

/// How badly the network behaves, in chances of a thousand.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub lose: u32,
    pub repeat: u32,
    pub delay_max_ms: u64,
}

impl Weather {
    pub const CALM: Weather = Weather { lose: 0, repeat: 0, delay_max_ms: 5 };
}

pub fn chance(rng: &mut ChaCha8Rng, of_thousand: u32) -> bool {
    rng.random_range(0..1000) < of_thousand
}

impl Link {
    pub fn send_up(&mut self, rng: &mut ChaCha8Rng, weather: Weather, now: Time, m: ToController) {
        if self.cut {
            return;
        }
        push(&mut self.up, rng, weather, now, self.session, m);
    }

    pub fn send_down(&mut self, rng: &mut ChaCha8Rng, weather: Weather, now: Time, order: Order) {
        if self.cut {
            return;
        }
        push(&mut self.down, rng, weather, now, self.session, order);
    }

    /// The stream is gone, with everything in it; the controller hears of it unless it is cut off.
    pub fn break_session(&mut self, now: Time) {
        self.up.clear();
        self.down.clear();
        if !self.cut {
            self.up.push_back((now, self.session, ToController::Closed));
        }
    }

    pub fn next_up(&mut self, now: Time) -> Option<(u64, ToController)> {
        due(&mut self.up, now).map(|(_, s, m)| (s, m))
    }

    pub fn next_down(&mut self, now: Time) -> Option<Order> {
        let session = self.session;
        due(&mut self.down, now).filter(|(_, s, _)| *s == session).map(|(_, _, o)| o)
    }

    pub fn clear(&mut self) {
        self.up.clear();
        self.down.clear();
    }
}

fn due<T>(queue: &mut VecDeque<(Time, u64, T)>, now: Time) -> Option<(Time, u64, T)> {
    if queue.front().is_some_and(|(at, ..)| *at <= now) { queue.pop_front() } else { None }
}

fn push<T: Clone>(
    queue: &mut VecDeque<(Time, u64, T)>,
    rng: &mut ChaCha8Rng,
    weather: Weather,
    now: Time,
    session: u64,
    message: T,
) {
    if chance(rng, weather.lose) {
        return;
    }
    let delay = rng.random_range(0..=weather.delay_max_ms);
    let earliest = queue.back().map_or(now, |(at, ..)| *at);
    let at = Time(now.0 + delay).max(earliest);
    queue.push_back((at, session, message.clone()));
    if chance(rng, weather.repeat) {
        queue.push_back((at, session, message));
    }
}
