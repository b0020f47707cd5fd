//! The JSON of answers and of pieces of them.

use serde_json::{Map, Value, json};

use crate::request::{Emission, Finish};
use crate::sampling::Logprobs;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Completion,
    Chat,
}

/// What all pieces of one answer have in common.
pub struct Shape {
    kind: Kind,
    id: String,
    model: String,
    created: u64,
}

/// What is told of one choice, at once or bit by bit.
#[derive(Clone, Debug, Default)]
pub struct Said {
    pub text: String,
    pub tokens: Vec<(u8, Logprobs)>,
    pub finish: Option<Finish>,
}

impl Said {
    pub fn add(&mut self, emission: Emission) {
        self.text.push_str(&emission.text);
        self.tokens.extend(emission.logprobs.map(|logprobs| (emission.token, logprobs)));
        self.finish = emission.finish;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: usize,
    pub output: usize,
    pub cached: usize,
}

impl Usage {
    /// Of `copies` choices with one prompt it is the first that may find the prompt there; the others
    /// find what that one computed.
    pub fn add(&mut self, finish: &Finish, index: usize, copies: usize) {
        self.output += finish.tokens;
        self.cached += if index.is_multiple_of(copies) { finish.cached } else { 0 };
    }

    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.output,
            "total_tokens": self.prompt + self.output,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}

impl Shape {
    pub fn new(kind: Kind, model: &str, random: u64, created: u64) -> Self {
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        Shape { kind, id: format!("{prefix}-{random:016x}"), model: model.to_owned(), created }
    }

    fn object(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let value = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        match value {
            Value::Object(map) => map,
            _ => unreachable!("an object was written"),
        }
    }

    pub fn whole(&self, said: &[Said], usage: Usage) -> Value {
        let object = match self.kind {
            Kind::Completion => "text_completion",
            Kind::Chat => "chat.completion",
        };
        let choices = said.iter().enumerate().map(|(index, said)| match self.kind {
            Kind::Completion => completion_choice(index, said, 0),
            Kind::Chat => json!({
                "index": index,
                "message": { "role": "assistant", "content": said.text },
                "logprobs": null,
                "finish_reason": reason(said),
            }),
        });
        let mut map = self.object(object, choices.collect());
        map.insert("usage".into(), usage.json());
        Value::Object(map)
    }

    /// A bit of one choice; `offset` is how much text came before it.
    pub fn piece(&self, index: usize, said: &Said, offset: usize) -> Value {
        let (object, choice) = match self.kind {
            Kind::Completion => ("text_completion", completion_choice(index, said, offset)),
            Kind::Chat => {
                let delta = match said.text.is_empty() {
                    true => json!({}),
                    false => json!({ "content": said.text }),
                };
                ("chat.completion.chunk", chat_piece(index, delta, reason(said)))
            }
        };
        Value::Object(self.object(object, vec![choice]))
    }

    /// The first piece of each choice of a chat says who speaks.
    pub fn opening(&self, index: usize) -> Option<Value> {
        if self.kind != Kind::Chat {
            return None;
        }
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = chat_piece(index, delta, Value::Null);
        Some(Value::Object(self.object("chat.completion.chunk", vec![choice])))
    }

    pub fn usage(&self, usage: Usage) -> Value {
        let object = match self.kind {
            Kind::Completion => "text_completion",
            Kind::Chat => "chat.completion.chunk",
        };
        let mut map = self.object(object, vec![]);
        map.insert("usage".into(), usage.json());
        Value::Object(map)
    }
}

fn reason(said: &Said) -> Value {
    said.finish.as_ref().map_or(Value::Null, |finish| finish.reason.as_str().into())
}

fn chat_piece(index: usize, delta: Value, finish: Value) -> Value {
    json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": finish })
}

fn completion_choice(index: usize, said: &Said, offset: usize) -> Value {
    let logprobs = if said.tokens.is_empty() { Value::Null } else { logprobs(said, offset) };
    json!({
        "index": index, "text": said.text, "logprobs": logprobs, "finish_reason": reason(said),
    })
}

/// Offsets count bytes, which are tokens.
fn logprobs(said: &Said, offset: usize) -> Value {
    let top = said.tokens.iter().map(|(_, logprobs)| {
        let pairs = logprobs.top.iter().map(|(token, value)| (name(*token), json!(value)));
        Value::Object(pairs.collect())
    });
    json!({
        "tokens": said.tokens.iter().map(|(token, _)| name(*token)).collect::<Vec<_>>(),
        "token_logprobs": said.tokens.iter().map(|(_, one)| one.chosen).collect::<Vec<_>>(),
        "top_logprobs": top.collect::<Vec<_>>(),
        "text_offset": (offset..offset + said.tokens.len()).collect::<Vec<_>>(),
    })
}

/// Bytes that are no character of their own are written as OpenAI writes them.
fn name(token: u8) -> String {
    if token.is_ascii() { char::from(token).to_string() } else { format!("bytes:\\x{token:02x}") }
}
