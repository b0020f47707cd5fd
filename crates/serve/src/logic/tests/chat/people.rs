//! Who asks what and when. Seeded by the conversation, so that all policies meet the same people.

use super::server::TOKENS_PER_BLOCK;

/// Turns of a conversation.
pub const TURNS_MEAN: f64 = 6.0;
/// From an answer to the next question.
const PAUSE_MEAN_S: f64 = 20.0;
/// Median and spread of the logarithm: most questions are short, a few paste a document.
const QUESTION_TOKENS: (f64, f64) = (120.0, 1.0);
const ANSWER_TOKENS: (f64, f64) = (220.0, 0.6);
/// Tokens of the system prompts, the most popular first.
const SYSTEM_TOKENS: [u64; 8] = [320, 640, 160, 480, 960, 320, 160, 640];

/// splitmix64.
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }
    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }
    fn log_normal(&mut self, (median, sigma): (f64, f64)) -> f64 {
        let normal = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        median * (sigma * normal).exp()
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub struct People {
    dice: Dice,
    talks_per_s: f64,
}

impl People {
    pub fn new(talks_per_s: f64) -> Self {
        People { dice: Dice(17), talks_per_s }
    }

    pub fn until_next_talk(&mut self) -> f64 {
        self.dice.exponential(1.0 / self.talks_per_s)
    }

    pub fn talk(&mut self, number: u64) -> Talk {
        Talk::new(number)
    }
}

/// One conversation. Every message fills whole blocks.
pub struct Talk {
    dice: Dice,
    number: u64,
    said: Vec<u64>,
    answer_tokens: f64,
}

impl Talk {
    fn new(number: u64) -> Self {
        let mut dice = Dice(mix(number + 1000));
        // The nth most popular prompt is chosen in proportion to 1/n.
        let total: f64 = (1..=SYSTEM_TOKENS.len()).map(|n| 1.0 / n as f64).sum();
        let mut at = dice.unit() * total;
        let mut system = 0;
        while system + 1 < SYSTEM_TOKENS.len() && at > 1.0 / (system + 1) as f64 {
            at -= 1.0 / (system + 1) as f64;
            system += 1;
        }
        let mut talk = Talk { dice, number, said: Vec::new(), answer_tokens: 0.0 };
        talk.say(SYSTEM_TOKENS[system] as f64, mix(system as u64));
        talk
    }

    /// The whole prompt: all that was said, and a question.
    pub fn ask(&mut self) -> Vec<u64> {
        let tokens = self.dice.log_normal(QUESTION_TOKENS).min(8000.0);
        self.answer_tokens = self.dice.log_normal(ANSWER_TOKENS).min(2000.0);
        self.say(tokens, mix(self.number) ^ 1);
        self.said.clone()
    }

    pub fn answer_tokens(&self) -> f64 {
        self.answer_tokens
    }

    /// All that was said, with the answer.
    pub fn answered(&mut self) -> Vec<u64> {
        self.say(self.answer_tokens, mix(self.number) ^ 2);
        self.said.clone()
    }

    /// Until the next question, if there is one.
    pub fn pause_s(&mut self) -> Option<f64> {
        let goes_on = self.dice.unit() < 1.0 - 1.0 / TURNS_MEAN;
        goes_on.then(|| self.dice.exponential(PAUSE_MEAN_S))
    }

    fn say(&mut self, tokens: f64, what: u64) {
        let blocks = (tokens / TOKENS_PER_BLOCK as f64).ceil().max(1.0) as usize;
        for _ in 0..blocks {
            let before = self.said.last().copied().unwrap_or(0);
            self.said.push(mix(before.rotate_left(7) ^ what));
        }
    }
}
