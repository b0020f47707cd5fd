//! Scene: what the gang trained becomes an endpoint, and somebody asks it through the router.

use std::time::{Duration, Instant};

use serde::Deserialize;
use tutti_model::{GpuRequest, JobSpec, ServiceSpec, Span};
use tutti_wire::api::{EndpointState, Serve};

use super::report::ServingFigures;
use super::stage::{Stage, check};
use super::summary::seconds_text;
use super::training;
use crate::fail::{Fail, chain};
use crate::show::job::quoted;

const NAME: &str = "demo";
/// The model was trained with 32 bytes at a time: prompt and answer together are no longer.
const PROMPT: &str = "The ";
const ANSWER_TOKENS: u32 = 27;
const ANSWER_WAIT: Duration = Duration::from_secs(20);

pub fn play(stage: &mut Stage<'_>) -> Result<ServingFigures, Fail> {
    stage.view.begin("serving", "the trained model as an endpoint");
    let router = stage.cluster.router_url.clone().ok_or_else(|| Fail::new("no router runs"))?;
    let asked = Instant::now();
    let (spec, user) = (spec(stage)?, stage.user());
    let serve = Serve { spec, user, update: false, must_exist: false, canary: None };
    stage.client().serve(&serve)?;
    let endpoint = stage.until("the endpoint to answer", || {
        let endpoint = stage.client().endpoint_detail(NAME)?;
        check(endpoint.row.state != EndpointState::Failing, || {
            format!("its replicas fail: {}", endpoint.why.join("; "))
        })?;
        Ok((endpoint.row.state == EndpointState::Ready).then_some(endpoint))
    })?;
    let ready_seconds = asked.elapsed().as_secs_f64();
    let replica = endpoint.replicas.first().ok_or_else(|| Fail::new("it has no replica"))?;
    stage.view.now(&format!("asking it: {PROMPT:?}"));
    let asked = Instant::now();
    let answer = ask(&router)?;
    let answer_seconds = asked.elapsed().as_secs_f64();
    check(!answer.text.is_empty() && answer.tokens > 0, || "it answered nothing".to_owned())?;
    stop(stage)?;
    let figures = ServingFigures {
        endpoint: NAME.to_owned(),
        job: tutti_model::TaskId::single(replica.job),
        ready_seconds,
        prompt: PROMPT.to_owned(),
        answer: answer.text,
        answer_tokens: answer.tokens,
        answer_seconds,
    };
    stage.view.done(&format!(
        "ready after {}; asked {PROMPT:?} through the router, it went on {:?} ({} tokens in {})",
        seconds_text(ready_seconds),
        figures.answer,
        figures.answer_tokens,
        seconds_text(answer_seconds)
    ));
    Ok(figures)
}

fn spec(stage: &Stage<'_>) -> Result<JobSpec, Fail> {
    let dir = stage.shared.join(training::UNDISTURBED);
    let dir = dir.to_str().ok_or_else(|| Fail::new(format!("{dir:?} is not UTF-8")))?;
    let line = format!(
        "exec {} infer --checkpoint {} --model {NAME} --max-batch 2",
        quoted(&stage.program),
        quoted(dir)
    );
    let mut spec = stage.shell(NAME, &line);
    spec.gpus_per_node = Some(GpuRequest { model: None, count: 1 });
    spec.service = Some(Box::new(ServiceSpec {
        slow_start: Span::secs(0),
        drain: Span::secs(2),
        ..ServiceSpec::default()
    }));
    Ok(spec)
}

/// Gone, with its replica, so that the totals are what they should be.
fn stop(stage: &Stage<'_>) -> Result<(), Fail> {
    stage.client().stop_endpoint(NAME)?;
    stage.until("the end of the endpoint", || match stage.client().endpoint_detail(NAME) {
        Ok(_) => Ok(None),
        Err(e) if e.is_not_found() => Ok(Some(())),
        Err(e) => Err(e.into()),
    })
}

struct Answer {
    text: String,
    tokens: u32,
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    usage: Usage,
}

#[derive(Deserialize)]
struct Choice {
    text: String,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: u32,
}

/// As any client of OpenAI's API would.
fn ask(router: &str) -> Result<Answer, Fail> {
    let failed =
        |e: &(dyn std::error::Error + 'static)| Fail::new(format!("{router}: {}", chain(e)));
    let agent: ureq::Agent =
        ureq::Agent::config_builder().proxy(None).timeout_global(Some(ANSWER_WAIT)).build().into();
    let question = serde_json::json!({
        "model": NAME, "prompt": PROMPT, "max_tokens": ANSWER_TOKENS, "temperature": 0,
    });
    let answer = agent.post(format!("{router}/v1/completions")).send_json(question);
    let completion: Completion =
        answer.and_then(|answer| answer.into_body().read_json()).map_err(|e| failed(&e))?;
    let first = completion.choices.into_iter().next();
    let text = first.ok_or_else(|| Fail::new("the answer has no choice"))?.text;
    Ok(Answer { text, tokens: completion.usage.completion_tokens })
}
