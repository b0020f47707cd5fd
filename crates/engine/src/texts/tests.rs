//! Replayed, and out of a snapshot, everything is as it was; and nothing is kept for longer than needed.

use proptest::prelude::*;
use tutti_model::{Bytes, GpuRequest, JobSpec, ServiceSpec, Span, StoredText, TaskId};

use super::*;
use crate::tests::world::{World, ada};
use crate::{Command, Engine, Rejected, Reply, Settings, SpecHolder, apply, invariants};

fn with_env(bytes: usize, name: &str, fill: char) -> JobSpec {
    let mut spec = JobSpec::shell("true");
    spec.name = Some(name.to_owned());
    spec.hold = true;
    spec.env.insert("BIG".to_owned(), fill.to_string().repeat(bytes));
    spec
}

fn submit(spec: JobSpec, key: Option<&str>) -> Command {
    let key = key.map(str::to_owned);
    Command::Submit { actor: ada(), spec: Box::new(spec), user: None, key }
}

fn cancel(job: JobId) -> Command {
    Command::Cancel { actor: ada(), target: TaskId::single(job) }
}

fn stored(state: &State) -> u64 {
    state.texts.values().map(StoredText::bytes).sum()
}

/// As the journal has them, and as they come out of it.
fn written_and_read(records: &[Record]) -> (usize, Vec<Record>) {
    let text = serde_json::to_vec(&*packed_records(records)).unwrap();
    let read = serde_json::from_slice(&text).unwrap();
    (text.len(), read)
}

#[test]
fn equal_environments_are_one_in_memory_and_in_the_journal() {
    let mut world = World::new(&[8]);
    let mut written = 0;
    for i in 0..50 {
        let step = world.step(submit(with_env(100_000, &format!("job {i}"), 'x'), None));
        written += written_and_read(&step.records).0;
    }
    assert!(written < 200_000, "{written} bytes for 50 jobs with one environment");
    let state = world.engine.state();
    assert_eq!((state.texts.len(), stored(state)), (1, 100_003 + 2 * size_of::<String>() as u64));
    let jobs: Vec<&Arc<Job>> = state.jobs.values().collect();
    assert!(jobs.iter().all(|job| job.spec.env.is_same(&jobs[0].spec.env)));
    let held = &state.index.spec_bytes.users["ada"];
    assert!(held.bytes < 150_000, "{}", held.bytes);
    // A snapshot has it once, too, and afterwards it is one in memory again.
    let snapshot = serde_json::to_vec(&packed_state(state.clone())).unwrap();
    assert!(snapshot.len() < 200_000, "{}", snapshot.len());
    let read = Engine::restore(serde_json::from_slice(&snapshot).unwrap(), Settings::default());
    assert_eq!(read.state(), state);
    let jobs: Vec<&Arc<Job>> = read.state().jobs.values().collect();
    assert!(jobs.iter().all(|job| job.spec.env.is_same(&jobs[0].spec.env)));
}

#[test]
fn a_text_goes_with_the_last_job_that_has_it() {
    let mut world = World::new(&[8]);
    let spec = |name| with_env(100_000, name, 'x');
    let (a, b) = (world.submit(spec("a")), world.submit(spec("b")));
    world.step(cancel(a));
    assert_eq!(
        stored(world.engine.state()),
        100_003 + 2 * size_of::<String>() as u64,
        "b still has it"
    );
    world.step(cancel(b));
    let state = world.engine.state();
    assert_eq!(stored(state), 0);
    assert!(state.index.spec_bytes.users.is_empty());
    let left = state.job(a).unwrap();
    assert!(left.spec.bytes() < 20_000, "only its beginning outlives the job");
    assert!(left.spec.env["BIG"].contains("bytes more were let go"));
    world.wait(8 * 86_400, &[]);
    assert_eq!(world.engine.state().index.ended_specs.bytes, 0);
}

#[test]
fn a_key_still_finds_a_job_whose_text_was_cut() {
    let mut world = World::new(&[8]);
    let spec = with_env(100_000, "a", 'x');
    let job = world.submit_with_key(spec.clone(), Some("k")).unwrap();
    world.step(cancel(job));
    assert_eq!(world.submit_with_key(spec.clone(), Some("k")), Ok(job));
    let mut other = spec;
    other.env.get_mut("BIG").unwrap().push('y');
    assert_eq!(world.submit_with_key(other, Some("k")), Err(Rejected::KeyReused(job)));
}

#[test]
fn one_user_is_refused_at_the_bound_and_told_the_numbers() {
    let mut world = World::new(&[8]);
    let mut taken = Vec::new();
    let refused = loop {
        let fill = char::from_u32(0x4e00 + taken.len() as u32).unwrap();
        let mut spec = with_env(1, &format!("job {}", taken.len()), fill);
        spec.env.insert("BIG".to_owned(), format!("{fill}{}", "x".repeat(240_000)));
        match world.engine.step(submit(spec, None), world.now).reply {
            Ok(Reply::Submitted { job, .. }) => taken.push(job),
            Err(refused) => break refused,
            other => panic!("{other:?}"),
        }
        assert!(taken.len() < 1000);
    };
    let Rejected::TooManySpecBytes { whose, name, has, adds, limit } = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!((*whose, name.as_str(), *limit), (SpecHolder::User, "ada", Bytes(64 << 20)));
    assert!(has.0 <= limit.0 && has.0 + adds.0 > limit.0, "{refused}");
    assert!(refused.to_string().contains("64.0 MiB"), "{refused}");
    assert_eq!(taken.len(), 279);
    // One less makes room for one more.
    world.step(cancel(taken[0]));
    world.submit(with_env(200_000, "again", 'y'));
    // And an operator may allow more.
    world.set_policy(|policy| policy.submissions.user_bytes = Bytes(65 << 20));
    world.submit(with_env(200_000, "more", 'z'));
}

#[test]
fn one_job_is_refused_at_its_bound() {
    let mut world = World::new(&[8]);
    let refused = world.try_submit(with_env(1 << 20, "a", 'x')).unwrap_err().to_string();
    for word in ["1048583 bytes", "262144 (256KiB)", "job_bytes", "[submissions]", "file"] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
}

/// What an endpoint says beside its command is no place to hide: revision after revision it counts.
#[test]
fn what_a_service_says_counts_for_its_user() {
    let mut world = World::new(&[8]);
    world.set_policy(|policy| {
        policy.submissions.job_bytes = Bytes(64 << 10);
        policy.submissions.user_bytes = Bytes(64 << 10);
    });
    let chat = |round: usize| {
        let model = |n: usize| format!("{round:04}-{n:04}{}", "x".repeat(190));
        let service = ServiceSpec { models: (0..100).map(model).collect(), ..Default::default() };
        let name = Some(format!("chat-{round}"));
        JobSpec { name, service: Some(Box::new(service)), ..JobSpec::shell("serve") }
    };
    let mut serve = |round| {
        let (actor, user, key) = (ada(), None, None);
        world.step(Command::Serve { actor, spec: Box::new(chat(round)), user, key }).reply
    };
    let refused = (0..10).find_map(|round| serve(round).err()).expect("ten have 200 kB of names");
    assert!(matches!(refused, Rejected::TooManySpecBytes { .. }), "{refused:?}");
}

#[test]
fn no_text_of_a_job_file_is_without_bounds() {
    let mut world = World::new(&[8]);
    let long = "x".repeat(1 << 20);
    let mut spec = JobSpec::shell("train");
    spec.gpus_per_node = Some(GpuRequest { model: Some(long.clone()), count: 1 });
    let refused = world.try_submit(spec).unwrap_err();
    assert!(refused.to_string().contains("model"), "{refused}");
    let files = Some(format!("/{long}"));
    let service = Some(Box::new(ServiceSpec { files, ..ServiceSpec::default() }));
    let spec = Box::new(JobSpec { name: Some("chat".into()), service, ..JobSpec::shell("serve") });
    let (actor, user) = (ada(), None);
    let serve = |spec, key| Command::Serve { actor: actor.clone(), spec, user: user.clone(), key };
    let refused = world.step(serve(spec.clone(), None)).reply.unwrap_err();
    assert!(refused.to_string().contains("4096"), "{refused}");
    let refused = world.step(serve(spec, Some(long))).reply.unwrap_err();
    assert!(refused.to_string().contains("key"), "{refused}");
}

#[test]
fn many_ended_jobs_leave_early_when_they_take_too_much() {
    let mut world = World::new(&[8]);
    let kept = Bytes(100_000);
    let state = world.engine.state().clone();
    let settings = Settings { archived: true, ended_bytes_kept: kept, ..Settings::default() };
    world.engine = Engine::restore(state, settings);
    let jobs: Vec<JobId> = (0..10)
        .map(|i| {
            let job = world.submit(with_env(15_000 + i, &format!("{i}"), 'x'));
            world.now = world.now.plus(Span(1));
            world.step(cancel(job));
            job
        })
        .collect();
    let state = world.engine.state();
    let due: Vec<JobId> = crate::forgettable(state, world.engine.settings(), world.now).collect();
    assert!(!due.is_empty() && due.len() < 10, "{due:?}");
    assert_eq!(due, jobs[..due.len()]);
}

/// References from before more than letters was counted: all that have a text count the same for it.
#[test]
fn what_an_older_snapshot_counted_is_counted_anew() {
    let mut world = World::new(&[8]);
    let job = world.submit(with_env(100_000, "a", 'x'));
    let state = world.engine.state().clone();
    let mut older = packed_state(state.clone());
    let texts = &mut Arc::make_mut(older.jobs.get_mut(&job).unwrap()).texts;
    texts.env.as_mut().unwrap().bytes = 100_003;
    let read = Engine::restore(older, Settings::default());
    assert_eq!(read.state(), &state);
    assert_eq!(read.state().index.spec_bytes, state.index.spec_bytes);
}

/// An event from before texts were stored by their hash.
#[test]
fn old_journals_load() {
    let text = r#"{"seq":1,"at":5,"event":{"event":"job_submitted","job":1,"user":"ada",
        "spec":{"run":"LONG","env":{"A":"LONG"}},"key":null,"team":"default"}}"#;
    let text = text.replace("LONG", &"x".repeat(50_000));
    let record: Record = serde_json::from_str(&text).unwrap();
    let mut state = State::default();
    apply(&mut state, &record);
    let job = state.job(JobId(1)).unwrap();
    assert_eq!((job.spec.run.bytes(), job.texts.is_empty()), (50_000, true));
    assert!(invariants::check_all(&state).is_empty());
}

#[derive(Clone, Debug)]
enum Act {
    Submit { text: u8, run: bool },
    Cancel(usize),
    Forget,
    Reload,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        5 => (0u8..4, any::<bool>()).prop_map(|(text, run)| Act::Submit { text, run }),
        3 => (0usize..40).prop_map(Act::Cancel),
        1 => Just(Act::Forget),
        1 => Just(Act::Reload),
    ];
    prop::collection::vec(act, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens, what is replayed from packed records equals what is live, the invariants hold,
    /// and a packed snapshot goes on where the state was.
    #[test]
    fn a_replay_equals_what_is_live(acts in acts()) {
        let settings = Settings { archived: true, ..Settings::default() };
        let mut live = Engine::new(settings.clone());
        let mut replayed = Engine::new(settings.clone());
        let mut jobs = Vec::new();
        let mut now = tutti_model::Time(1000);
        for act in acts {
            now = now.plus(Span(10));
            let command = match act {
                Act::Submit { text, run } => {
                    let fill = char::from(b'a' + text);
                    let mut spec = with_env(6_000 * (usize::from(text) + 1), "job", fill);
                    if run {
                        spec.run = Run::Shell(fill.to_string().repeat(20_000)).into();
                    }
                    submit(spec, None)
                }
                Act::Cancel(at) => match jobs.get(at) {
                    Some(job) => cancel(*job),
                    None => continue,
                },
                Act::Forget => Command::Forget { jobs: jobs.clone() },
                Act::Reload => {
                    let snapshot = packed_state(live.state().clone());
                    let snapshot = serde_json::to_vec(&snapshot).unwrap();
                    let read = serde_json::from_slice(&snapshot).unwrap();
                    live = Engine::restore(read, settings.clone());
                    continue;
                }
            };
            let step = live.step(command, now);
            if let Ok(Reply::Submitted { job, .. }) = step.reply {
                jobs.push(job);
            }
            for record in written_and_read(&step.records).1 {
                replayed.replay(&record);
            }
            prop_assert_eq!(replayed.state(), live.state());
            let breaches = invariants::check_all(live.state());
            prop_assert!(breaches.is_empty(), "{:?}", breaches);
        }
    }
}
