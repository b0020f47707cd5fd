//! What goes wrong between a client and a replica.

use crate::answer::Answer;
use crate::http::{BadHead, Malformed};

/// Why an exchange came to no good end.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The client left.
    Gone,
    /// The client sends nothing more of its request, or takes nothing more of its answer.
    Slow,
    BadBody(Malformed),
    TooLarge,
    /// The replica broke the connection; before anything of an answer came, or after.
    Broken {
        before_answer: bool,
    },
    BadAnswer(BadHead),
    BadAnswerBody(Malformed),
    /// The replica says nothing.
    Silent,
}

impl Fault {
    /// The client's doing, which says nothing of the replica.
    pub fn is_clients(&self) -> bool {
        matches!(self, Fault::Gone | Fault::Slow | Fault::BadBody(_) | Fault::TooLarge)
    }

    /// What is said to the client, while nothing of an answer was.
    pub fn answer(&self) -> Answer {
        match self {
            // Nobody hears it.
            Fault::Gone => Answer::error(499, "client_gone", "the client left"),
            Fault::Slow => {
                Answer::error(408, "request_timeout", "the rest of the request did not come")
            }
            Fault::BadBody(bad) => Answer::error(400, "bad_request", &bad.to_string()),
            Fault::TooLarge => {
                Answer::error(413, "body_too_large", "the body is larger than this router takes")
            }
            Fault::Broken { .. } => {
                Answer::error(502, "replica_broke_off", "the replica broke off before it answered")
            }
            Fault::BadAnswer(bad) => {
                Answer::error(502, "bad_answer", &format!("the replica's answer: {bad}"))
            }
            Fault::BadAnswerBody(bad) => {
                Answer::error(502, "bad_answer", &format!("the replica's answer: {bad}"))
            }
            Fault::Silent => Answer::error(504, "replica_silent", "the replica did not answer"),
        }
    }
}
