//! Large commands and environments are stored once, by their hash, however many jobs have them.
//!
//! ```text
//!  JobSubmitted ─ share ─► TextKept, if it is new, then JobSubmitted with references
//!  journal, snapshot ◄─ packed: references alone       apply, restore ─► whole again
//! ```
//! A text goes with the last job or endpoint that has it. Of a job that is over only the beginning of
//! long texts is kept: nobody runs them again.

use std::borrow::Cow;
use std::sync::Arc;

use tutti_model::{
    Command as Run, Job, JobId, JobSpec, Shared, State, StoredText, TextDigest, TextRef, TextRefs,
    Variables, env_bytes,
};

use crate::event::{Event, Record};

/// Texts of this size on are stored by their hash; smaller ones are not worth a reference.
const STORED_FROM: u64 = 4 << 10;

/// So much of each text outlives the job.
const KEPT_BYTES: usize = 16 << 10;

/// What of this spec is to be stored by hash.
pub(crate) fn refs_of(spec: &JobSpec) -> TextRefs {
    let large = |text: StoredText| {
        let bytes = text.bytes();
        (bytes >= STORED_FROM).then(|| TextRef { digest: digest(&text), bytes })
    };
    TextRefs { run: large(run_of(spec)), env: large(env_of(spec)) }
}

fn run_of(spec: &JobSpec) -> StoredText {
    StoredText::Run(spec.run.clone())
}

fn env_of(spec: &JobSpec) -> StoredText {
    StoredText::Env(spec.env.clone())
}

/// Every word with its length before it, so that no two texts have the same bytes.
fn digest(text: &StoredText) -> TextDigest {
    let mut hasher = blake3::Hasher::new();
    let mut word = |word: &str| {
        hasher.update(&(word.len() as u64).to_le_bytes());
        hasher.update(word.as_bytes());
    };
    match text {
        StoredText::Run(run) => match &**run {
            Run::Shell(line) => ["shell", line].into_iter().for_each(&mut word),
            Run::Argv(words) => {
                word("argv");
                words.iter().for_each(|w| word(w));
            }
        },
        StoredText::Env(env) => {
            word("env");
            env.iter().flat_map(|(name, value)| [name, value]).for_each(|w| word(w));
        }
    }
    TextDigest(hasher.finalize().to_hex().to_string())
}

/// The spec that an event brings into the state, and what of it is stored by hash.
fn spec_of(event: &mut Event) -> Option<(&mut Arc<JobSpec>, &mut TextRefs)> {
    match event {
        Event::JobSubmitted { spec, texts, .. }
        | Event::EndpointCreated { spec, texts, .. }
        | Event::EndpointRevised { spec, texts, .. } => Some((spec, texts)),
        _ => None,
    }
}

/// Puts references into an event with large texts. Answers with the event that must come before it,
/// if one of them is new.
pub(crate) fn share(state: &State, event: &mut Event) -> Option<Event> {
    let (spec, texts) = spec_of(event)?;
    if texts.is_empty() {
        *texts = refs_of(spec);
    }
    let new = |text: &Option<TextRef>, body: &dyn Fn(&JobSpec) -> StoredText| {
        let digest = text.as_ref().map(|t| &t.digest).filter(|d| !state.texts.contains_key(d))?;
        Some(Event::TextKept { digest: digest.clone(), text: body(spec) })
    };
    new(&texts.run, &run_of).or_else(|| new(&texts.env, &env_of))
}

/// The spec with its texts, which are the very ones that the state has, and the references with what
/// those take: an older journal may have counted otherwise.
pub(crate) fn whole(
    state: &State,
    spec: &Arc<JobSpec>,
    texts: &TextRefs,
) -> (Arc<JobSpec>, TextRefs) {
    let (mut spec, mut texts) = (Arc::clone(spec), texts.clone());
    let stored = |text: &mut Option<TextRef>| {
        let text = text.as_mut()?;
        let stored = state.texts.get(&text.digest)?;
        text.bytes = stored.bytes();
        Some(stored)
    };
    if let Some(StoredText::Run(run)) = stored(&mut texts.run) {
        Arc::make_mut(&mut spec).run = run.clone();
    }
    if let Some(StoredText::Env(env)) = stored(&mut texts.env) {
        Arc::make_mut(&mut spec).env = env.clone();
    }
    (spec, texts)
}

/// The spec without what is stored by hash.
fn bare(spec: &Arc<JobSpec>, texts: &TextRefs) -> Arc<JobSpec> {
    let mut spec = Arc::clone(spec);
    if texts.run.is_some() {
        Arc::make_mut(&mut spec).run = Run::Shell(String::new()).into();
    }
    if texts.env.is_some() {
        Arc::make_mut(&mut spec).env = Shared::default();
    }
    spec
}

/// Records as they are written down: each text in one record, however many refer to it.
pub fn packed_records(records: &[Record]) -> Cow<'_, [Record]> {
    let refers = |event: &Event| match event {
        Event::JobSubmitted { texts, .. }
        | Event::EndpointCreated { texts, .. }
        | Event::EndpointRevised { texts, .. } => !texts.is_empty(),
        _ => false,
    };
    if !records.iter().any(|r| refers(&r.event)) {
        return Cow::Borrowed(records);
    }
    let mut records = records.to_vec();
    for record in &mut records {
        if let Some((spec, texts)) = spec_of(&mut record.event) {
            *spec = bare(spec, texts);
        }
    }
    Cow::Owned(records)
}

/// The state as it is written down. [`crate::Engine::restore`] makes it whole again.
pub fn packed_state(mut state: State) -> State {
    for_each_spec(&mut state, |spec, refs| (bare(spec, refs), refs.clone()));
    state
}

pub(crate) fn unpack(state: &mut State) {
    let texts = std::mem::take(&mut state.texts);
    let with_texts = State { texts, ..State::default() };
    for_each_spec(state, |spec, refs| whole(&with_texts, spec, refs));
    state.texts = with_texts.texts;
}

fn for_each_spec(
    state: &mut State,
    change: impl Fn(&Arc<JobSpec>, &TextRefs) -> (Arc<JobSpec>, TextRefs),
) {
    for job in state.jobs.values_mut().filter(|job| !job.texts.is_empty()) {
        let (spec, texts) = change(&job.spec, &job.texts);
        let job = Arc::make_mut(job);
        (job.spec, job.texts) = (spec, texts);
    }
    let revisions = state.endpoints.values_mut().flat_map(|e| e.revisions.values_mut());
    for revision in revisions.filter(|revision| !revision.texts.is_empty()) {
        (revision.spec, revision.texts) = change(&revision.spec, &revision.texts);
    }
}

/// Texts that nothing has any more go.
pub(crate) fn drop_unused<'a>(state: &mut State, gone: impl IntoIterator<Item = &'a TextRef>) {
    for TextRef { digest, .. } in gone {
        let index = &state.index;
        if !index.spec_bytes.has_text(digest) && !index.ended_specs.has_text(digest) {
            state.texts.remove(digest);
        }
    }
}

/// The job is over: of its long texts only the beginning stays.
pub(crate) fn cut_ended(state: &mut State, id: JobId) {
    let Some(job) = state.job(id).filter(|job| job.cut.is_empty()) else { return };
    let (spec, cut) = shortened(&job.spec, &job.texts);
    if cut.is_empty() {
        return;
    }
    if let Some(job) = state.jobs_mut(id) {
        job.spec = Arc::new(spec);
        job.texts.run.take_if(|_| cut.run.is_some());
        job.texts.env.take_if(|_| cut.env.is_some());
        job.cut = cut;
    }
}

/// Whether the job was submitted with this spec.
pub(crate) fn is_of(job: &Job, spec: &JobSpec) -> bool {
    if let Some(asked) = &job.asked {
        return *asked == digest_of(spec);
    }
    let (known, spec) = (job.spec.as_asked(), spec.as_asked());
    if job.cut.is_empty() {
        return known == spec;
    }
    let (spec, cut) = shortened(&spec, &TextRefs::default());
    cut.has_the_same(&job.cut) && known == spec
}

/// Of all that was asked for, whatever the policy added.
pub(crate) fn digest_of(spec: &JobSpec) -> TextDigest {
    // Keys come in the order of the struct, and what is left out is not written: a newer version
    // writes an older file in the same way.
    let written = serde_json::to_vec(&spec.as_asked()).expect("a job spec is plain data");
    TextDigest(blake3::hash(&written).to_hex().to_string())
}

/// The spec as it outlives its job, and what it has lost.
fn shortened(spec: &JobSpec, known: &TextRefs) -> (JobSpec, TextRefs) {
    let mut short = spec.clone();
    let mut cut = TextRefs::default();
    let lost = |text: StoredText, known: &Option<TextRef>| {
        let new = || TextRef { digest: digest(&text), bytes: text.bytes() };
        Some(known.clone().unwrap_or_else(new))
    };
    if spec.run.bytes() > KEPT_BYTES as u64 {
        cut.run = lost(run_of(spec), &known.run);
        short.run = short_run(&spec.run).into();
    }
    if env_bytes(&spec.env) > KEPT_BYTES as u64 {
        cut.env = lost(env_of(spec), &known.env);
        short.env = short_env(&spec.env).into();
    }
    (short, cut)
}

fn short_run(run: &Run) -> Run {
    let mut room = KEPT_BYTES;
    match run {
        Run::Shell(line) => Run::Shell(beginning(line, &mut room)),
        Run::Argv(words) => {
            let words = words.iter().map_while(|w| (room > 0).then(|| beginning(w, &mut room)));
            Run::Argv(words.collect())
        }
    }
}

fn short_env(env: &Variables) -> Variables {
    let mut room = KEPT_BYTES;
    let short = |(name, value): (&String, &String)| {
        room = room.checked_sub(name.len()).filter(|room| *room > 0)?;
        Some((name.clone(), beginning(value, &mut room)))
    };
    env.iter().map_while(short).collect()
}

/// Takes the text's length out of the room that there is.
fn beginning(text: &str, room: &mut usize) -> String {
    let end = text.floor_char_boundary(*room);
    *room -= end;
    if end == text.len() {
        return text.to_owned();
    }
    *room = 0;
    let left = text.len() - end;
    format!("{}… ({left} bytes more were let go when the job ended)", &text[..end])
}

#[cfg(test)]
mod tests;
