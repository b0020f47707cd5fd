//! What a client asks for, read and checked.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::error::ApiError;
use super::shape::Kind;
use crate::request::{Request, SequenceId};
use crate::sampling::Sampling;

/// Both endpoints' fields. What is not named here is not looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Wanted {
    pub model: Option<String>,
    pub prompt: Option<Prompt>,
    pub messages: Option<Vec<Message>>,
    pub max_tokens: Option<i64>,
    pub max_completion_tokens: Option<i64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub seed: Option<i64>,
    pub stop: Option<Stop>,
    pub n: Option<i64>,
    pub best_of: Option<i64>,
    pub echo: Option<bool>,
    /// A number for completions, yes or no for chats.
    pub logprobs: Option<Value>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub logit_bias: Option<Value>,
    pub suffix: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text, a list of texts, or lists of tokens from 0 to 255")]
pub enum Prompt {
    One(String),
    Many(Vec<String>),
    Tokens(Vec<u8>),
    ManyTokens(Vec<Vec<u8>>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct StreamOptions {
    pub include_usage: bool,
}

#[derive(Debug, Deserialize)]
pub struct Message {
    pub role: String,
    pub content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text, or a list of {\"type\": \"text\", \"text\": …}")]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
pub struct Part {
    pub text: String,
}

/// What the server has room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Tokens of a prompt and its answer together.
    pub context: usize,
    /// Sequences of one request: more could never be taken at once.
    pub sequences: usize,
}

/// What is to be computed and how it is to be told.
#[derive(Debug)]
pub struct Ask {
    pub kind: Kind,
    pub requests: Vec<Request>,
    /// How many of them.
    pub choices: usize,
    /// How many of each prompt, behind each other.
    pub copies: usize,
    /// Of all prompts, each once.
    pub prompt_tokens: usize,
    pub stream: bool,
    pub include_usage: bool,
    /// What comes before the text of each choice.
    pub echo: Option<Vec<String>>,
}

const CHOICES_MAX: i64 = 128;
const STOPS_MAX: usize = 16;
const LOGPROBS_MAX: u64 = 20;
/// As many as OpenAI's completions have.
const TOKENS_DEFAULT: usize = 16;
/// The model has no token for a beginning. A line's end is what comes before most texts.
const BEGINNING: &[u8] = b"\n";

pub fn parse(body: &[u8]) -> Result<Wanted, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let wanted = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        let status = match inner.is_data() {
            true => StatusCode::UNPROCESSABLE_ENTITY,
            false => StatusCode::BAD_REQUEST,
        };
        let param = (path != "." && path != "?").then_some(path);
        ApiError { param, ..ApiError::new(status, inner.to_string()) }
    })?;
    let more = |error: serde_json::Error| ApiError::new(StatusCode::BAD_REQUEST, error.to_string());
    reader.end().map_err(more)?;
    Ok(wanted)
}

impl Wanted {
    pub fn completion(mut self, room: Room, random: u64) -> Result<Ask, ApiError> {
        let missing = || {
            let error = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "there is no prompt");
            ApiError { param: Some("prompt".to_owned()), ..error }
        };
        let prompts: Vec<Vec<u8>> = match self.prompt.take().ok_or_else(missing)? {
            Prompt::One(text) => vec![text.into_bytes()],
            Prompt::Many(texts) => texts.into_iter().map(String::into_bytes).collect(),
            Prompt::Tokens(tokens) => vec![tokens],
            Prompt::ManyTokens(many) => many,
        };
        if prompts.is_empty() {
            return Err(ApiError::bad("prompt", "the list of prompts is empty"));
        }
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::bad("suffix", "this model can only go on, not fill in"));
        }
        let logprobs = self.logprobs()?;
        let echo = self.echo.unwrap_or(false);
        if echo && logprobs.is_some() {
            let message = "logprobs of a prompt are not told: leave echo or logprobs out";
            return Err(ApiError::bad("logprobs", message));
        }
        let texts: Vec<String> =
            prompts.iter().map(|prompt| String::from_utf8_lossy(prompt).into_owned()).collect();
        let default = |room: usize| room.min(TOKENS_DEFAULT);
        let mut ask = self.ask(Kind::Completion, prompts, (room, default), random)?;
        ask.echo = echo.then(|| {
            let each = texts.iter().flat_map(|text| std::iter::repeat_n(text.clone(), ask.copies));
            each.collect()
        });
        ask.requests.iter_mut().for_each(|request| request.logprobs = logprobs);
        Ok(ask)
    }

    pub fn chat(mut self, room: Room, random: u64) -> Result<Ask, ApiError> {
        let messages = self.messages.take().unwrap_or_default();
        if messages.is_empty() {
            return Err(ApiError::bad("messages", "there must be at least one message"));
        }
        if self.logprobs.as_ref().is_some_and(|value| value != &Value::Bool(false)) {
            let message = "logprobs are told by /v1/completions only";
            return Err(ApiError::bad("logprobs", message));
        }
        let prompt = as_text(&messages).into_bytes();
        self.ask(Kind::Chat, vec![prompt], (room, |rest| rest), random)
    }

    /// `room` comes with how many tokens are made of its rest when nobody says.
    fn ask(
        self,
        kind: Kind,
        prompts: Vec<Vec<u8>>,
        (room, default): (Room, fn(usize) -> usize),
        random: u64,
    ) -> Result<Ask, ApiError> {
        self.refuse_unknown()?;
        let sampling = self.sampling(random)?;
        let stops: Arc<[String]> = self.stops(kind, room.context)?.into();
        let n = within("n", self.n.unwrap_or(1), 1..=CHOICES_MAX)? as usize;
        if self.best_of.is_some_and(|best| best != n as i64) {
            return Err(ApiError::bad("best_of", "best_of other than n is not known here"));
        }
        let sequences = prompts.len().saturating_mul(n);
        if sequences > room.sequences {
            let message = format!(
                "{} prompts with n {n} are {sequences} sequences, more than the {} that may wait here",
                prompts.len(),
                room.sequences
            );
            return Err(ApiError::bad("prompt", message));
        }
        let (mut requests, mut prompt_tokens) = (Vec::new(), 0);
        for prompt in prompts {
            let prompt = if prompt.is_empty() { BEGINNING.to_vec() } else { prompt };
            prompt_tokens += prompt.len();
            let max_tokens = self.max_tokens(prompt.len(), room.context, default)?;
            let prompt: Arc<[u8]> = prompt.into();
            requests.extend((0..n).map(|choice| Request {
                id: SequenceId(0),
                prompt: prompt.clone(),
                max_tokens,
                sampling: sampling.clone(),
                choice,
                stops: stops.clone(),
                logprobs: None,
            }));
        }
        let stream = self.stream.unwrap_or(false);
        let include_usage = self.stream_options.is_some_and(|options| options.include_usage);
        let (choices, copies, echo) = (requests.len(), n, None);
        Ok(Ask { kind, requests, choices, copies, prompt_tokens, stream, include_usage, echo })
    }

    /// Fields that would change the answer, and that nothing here knows.
    fn refuse_unknown(&self) -> Result<(), ApiError> {
        let zero = |value: Option<f64>| value.is_none_or(|value| value == 0.0);
        let bias = self.logit_bias.as_ref();
        let no_bias = bias.is_none_or(|bias| bias.as_object().is_some_and(|map| map.is_empty()));
        for (param, fine) in [
            ("presence_penalty", zero(self.presence_penalty)),
            ("frequency_penalty", zero(self.frequency_penalty)),
            ("logit_bias", no_bias),
        ] {
            if !fine {
                return Err(ApiError::bad(param, format!("{param} is not known here")));
            }
        }
        Ok(())
    }

    fn max_tokens(
        &self,
        prompt: usize,
        context: usize,
        default: fn(usize) -> usize,
    ) -> Result<usize, ApiError> {
        let too_long =
            |message: String| Err(ApiError::bad("prompt", message).code("context_length_exceeded"));
        if prompt >= context {
            return too_long(format!(
                "the prompt has {prompt} tokens, and the context of {context} leaves no room for more"
            ));
        }
        let room = context - prompt;
        let Some(wanted) = self.max_tokens.or(self.max_completion_tokens) else {
            return Ok(default(room));
        };
        let wanted = within("max_tokens", wanted, 1..=i64::MAX)? as usize;
        match wanted <= room {
            true => Ok(wanted),
            false => too_long(format!(
                "{prompt} tokens of the prompt and max_tokens {wanted} are more than the context of {context}; at most {room} can be made"
            )),
        }
    }

    fn sampling(&self, random: u64) -> Result<Sampling, ApiError> {
        let temperature = self.temperature.unwrap_or(1.0);
        if !(0.0..=2.0).contains(&temperature) {
            let message = format!("temperature {temperature} is not from 0 to 2");
            return Err(ApiError::bad("temperature", message));
        }
        let top_p = self.top_p.unwrap_or(1.0);
        if !(top_p > 0.0 && top_p <= 1.0) {
            let message = format!("top_p {top_p} is not above 0 and up to 1");
            return Err(ApiError::bad("top_p", message));
        }
        // vLLM writes "all" as -1, others as 0.
        let top_k = within("top_k", self.top_k.unwrap_or(0), -1..=i64::MAX)?.max(0) as usize;
        let seed = self.seed.map_or(random, i64::cast_unsigned);
        Ok(Sampling { temperature: temperature as f32, top_p: top_p as f32, top_k, seed })
    }

    fn stops(&self, kind: Kind, context: usize) -> Result<Vec<String>, ApiError> {
        let mut stops = match &self.stop {
            None => vec![],
            Some(Stop::One(stop)) => vec![stop.clone()],
            Some(Stop::Many(stops)) => stops.clone(),
        };
        if stops.len() > STOPS_MAX {
            let message = format!("{} stop strings are more than {STOPS_MAX}", stops.len());
            return Err(ApiError::bad("stop", message));
        }
        if let Some(long) = stops.iter().map(String::len).find(|len| *len > context) {
            let message =
                format!("a stop string of {long} tokens can't come in a context of {context}");
            return Err(ApiError::bad("stop", message));
        }
        // Else a model that only goes on would write the next question, too.
        stops.extend((kind == Kind::Chat).then(|| "\nuser:".to_owned()));
        Ok(stops)
    }

    fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        match &self.logprobs {
            None | Some(Value::Null) | Some(Value::Bool(false)) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(count) if count <= LOGPROBS_MAX => Ok(Some(count as usize)),
                _ => {
                    let message = format!("logprobs {value} is not from 0 to {LOGPROBS_MAX}");
                    Err(ApiError::bad("logprobs", message))
                }
            },
        }
    }
}

fn within(param: &str, value: i64, range: std::ops::RangeInclusive<i64>) -> Result<i64, ApiError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let message = match *range.end() {
        i64::MAX => format!("{param} {value} is below {}", range.start()),
        most => format!("{param} {value} is not from {} to {most}", range.start()),
    };
    Err(ApiError::bad(param, message))
}

/// A conversation as a text to be gone on with.
fn as_text(messages: &[Message]) -> String {
    let mut text = String::new();
    for message in messages {
        let content = match &message.content {
            None => String::new(),
            Some(Content::Text(content)) => content.clone(),
            Some(Content::Parts(parts)) => parts.iter().map(|part| part.text.as_str()).collect(),
        };
        text.push_str(&format!("{}: {content}\n", message.role));
    }
    text.push_str("assistant:");
    text
}

#[cfg(test)]
mod tests;
