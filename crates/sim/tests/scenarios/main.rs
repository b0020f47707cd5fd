//! Scenarios in text: a cluster, a policy, jobs, what happens when, and what is expected. The files
//! are in `crates/sim/scenarios`, one test each; its README says how they are written.
//!
//! They run on the production engine, its scheduler and its plan checker. A failure names the file
//! and line, what was expected, what is, and the whole state in the same words.

mod agents;
mod check;
mod cluster;
mod expect;
mod job;
mod policy;
mod script;
mod show;
mod words;
mod world;

use script::{Script, Step};
use tutti_engine::{Command, Rejected, Reply};
use words::EPOCH;
use world::{Broken, World, admin};

macro_rules! scenarios {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let text = include_str!(concat!("../../scenarios/", stringify!($name), ".txt"));
                play(stringify!($name), text);
            }
        )*
        const LISTED: &[&str] = &[$(stringify!($name)),*];
    };
}

scenarios! {
    a_bad_node_is_taken_out_and_says_why
    a_bad_policy_changes_nothing
    a_broken_node_does_not_eat_the_retries
    a_claim_on_a_node_that_dies_is_made_again
    a_claimant_that_goes_away_leaves_the_room
    a_drained_node_finishes_what_it_has
    a_gang_is_preempted_whole
    a_gang_is_suspended_whole_or_not_at_all
    a_gang_that_fits_in_a_rack_stays_in_it
    a_gang_that_lost_a_node_finds_the_others_again
    a_guarantee_is_lent_and_taken_back
    a_hard_limit_of_topology
    a_head_may_start_early
    a_higher_class_goes_first_and_may_preempt
    a_job_that_blocks_gpus_pays_for_them
    a_job_that_fails_by_itself_pays_for_it
    a_job_that_hangs_ends_at_its_time_limit
    a_job_that_stalls_is_started_again
    a_job_that_waits_is_told_why
    a_large_job_does_not_starve_behind_small_ones
    a_limit_by_gpu_model
    a_new_controller_requeues_nothing
    a_node_for_one_job_alone
    a_node_is_cleared_without_a_loss
    a_node_that_was_cut_off_stops_its_old_jobs
    a_part_of_a_gpu_beside_whole_ones
    a_policy_may_change_while_jobs_run
    a_preempted_job_is_left_alone_and_then_not
    a_rank_that_hangs_is_blamed_and_its_node_left
    a_reservation_of_a_team
    a_restarted_job_keeps_off_the_node_that_failed
    a_suspended_job_goes_on_where_it_was
    a_suspended_job_outlives_the_controller
    a_suspended_job_that_can_not_wake_starts_again
    a_suspended_job_wakes_on_other_gpus
    a_suspension_that_memory_has_no_room_for
    a_team_inside_its_guarantee_is_left_alone
    a_team_never_exceeds_its_limit
    a_total_of_gpus_on_few_nodes
    a_victim_that_saves_when_asked_is_cheap
    a_victim_that_will_not_go_is_killed_after_its_grace
    an_agent_may_restart_while_jobs_run
    an_agent_that_does_nothing_loses_its_job
    an_array_runs_as_many_as_it_may
    an_overdue_job_may_still_take_its_guarantee
    backfill_beside_the_head
    backfill_that_ends_before_the_head_starts
    backfill_that_would_delay_the_head_waits
    borrowed_gpus_come_back_in_whole_gangs
    durations_are_learned
    elastic_jobs_do_not_grow_over_others
    elastic_jobs_grow_into_idle_nodes
    elastic_jobs_shrink_before_anything_is_killed
    enough_free_gpus_but_not_together
    gangs_start_whole_or_not_at_all
    gpus_are_given_again_when_the_last_process_is_gone
    gpus_that_broke_are_not_given
    gpus_with_enough_memory
    guarantees_by_gpu_model
    islands_inside_a_node_stay_whole
    jobs_wait_for_other_jobs
    labels_wanted_and_unwanted
    maintenance_waits_for_nobody
    more_victims_than_allowed_are_no_solution
    nested_teams_share_inside_first
    nobody_is_preempted_by_equals
    nobody_is_preempted_twice_in_a_row
    nobody_knows_how_long_jobs_take
    nobody_starves
    nodes_kept_for_the_overdue_are_not_kept_from_higher_classes
    one_hung_agent_does_not_stop_the_others
    one_model_or_another
    parts_of_a_gpu_are_packed
    preemption_needs_all_its_victims_or_takes_none
    preemption_stops_no_more_than_it_needs
    preemption_that_would_not_help_stops_nobody
    priorities_count_inside_a_team
    quota_is_not_taken_by_what_can_not_start
    ranks_are_numbered_by_rack
    small_jobs_leave_whole_nodes_free
    some_jobs_are_never_preempted
    spares_are_kept_and_used
    suspended_jobs_do_not_starve
    suspended_jobs_wake_in_their_order
    teams_are_for_their_members
    the_cheaper_gang_is_the_victim
    the_grace_of_a_victim_is_honoured
    the_narrowest_domain_that_holds_a_gang
    the_shortest_job_first_if_the_operator_wants
    the_victim_that_has_just_saved_is_the_cheapest
    two_gangs_never_block_each_other
    weights_divide_what_is_free
    what_a_person_suspended_waits_for_that_person
    what_can_never_run_is_refused
    what_fails_everywhere_is_not_the_nodes
    what_waits_has_a_range_of_starts
    who_had_less_goes_first
    why_advises_the_smallest_change
}

#[test]
fn every_file_is_played() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let mut found: Vec<String> = std::fs::read_dir(dir)
        .expect("the scenarios are there")
        .map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned())
        .filter_map(|name| name.strip_suffix(".txt").map(str::to_owned))
        .collect();
    found.sort();
    assert_eq!(found, LISTED, "every file has its line in this test, in the order of the alphabet");
}

/// The table of peers' failures in the README has a row for each, and what it names is there.
#[test]
fn every_failure_of_peers_has_its_tests() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let readme = include_str!("../../scenarios/README.md");
    let (_, table) = readme.split_once("## Where peers fail").expect("the table is there");
    let rows: Vec<&str> = table.lines().filter(|l| l.starts_with("| ")).skip(1).collect();
    assert_eq!(rows.len(), 21, "one row for each failure");
    for (number, row) in (1..).zip(rows) {
        assert!(row.starts_with(&format!("| {number} ")), "{row}");
        let mut file = String::new();
        for name in row.rsplit('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2) {
            match name.split_once("::") {
                None if name.starts_with("--") => {}
                None if name.starts_with("crates/") => {
                    assert!(read(root, name).is_some(), "{name}")
                }
                None => assert!(LISTED.contains(&name), "there is no scenario {name}"),
                Some((path, test)) => {
                    if !path.is_empty() {
                        file = read(root, path).unwrap_or_else(|| panic!("there is no {path}"));
                    }
                    assert!(file.contains(&format!("fn {test}(")), "there is no test {name}");
                }
            }
        }
    }
}

fn read(root: &str, path: &str) -> Option<String> {
    std::fs::read_to_string(format!("{root}{path}")).ok()
}

/// What is expected must be so word by word: `behind 2` is not `behind 20`.
#[test]
fn a_reason_is_named_whole() {
    let text = |reason: &str| {
        format!(
            "cluster\n  n1: 2 h100\npolicy\n  team vision: limit 1, members ada\n\
             at 0s\n  submit 1..2: 1 gpu\n  expect 2 pending: {reason}\n"
        )
    };
    for right in ["team limit vision", "team limit", "team"] {
        assert_eq!(run(&text(right)), Ok(()), "{right}");
    }
    for wrong in ["team limit vis", "team limit vision x", "tea", "busy"] {
        assert_eq!(run(&text(wrong)).unwrap_err().0, 7, "{wrong}");
    }
}

/// A scenario that ends while room is being made still shows that somebody was stopped for nothing.
#[test]
fn nobody_is_stopped_in_vain_after_the_last_line() {
    let text = |grace: &str| {
        format!(
            "cluster\n  n1: 8 h100\nat 0s\n  submit 1: class scavenger, 8 gpus, ignores stop, \
             grace {grace}\nat 10m\n  submit 2: by admin, class urgent, 8 gpus\n  \
             expect 2 pending: claimed class\n"
        )
    };
    assert_eq!(run(&text("10m")), Ok(()));
    let (line, problem) = run(&text("5h")).unwrap_err();
    assert!(line == 5 && problem.contains("never started"), "{line}: {problem}");
}

/// Plays a scenario; the test fails with the line that is not as expected.
fn play(name: &str, text: &str) {
    if let Err((line, problem)) = run(text) {
        let said = text.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
        panic!("crates/sim/scenarios/{name}.txt:{line}: {said}\n{problem}\n");
    }
}

type Trouble = (usize, String);

fn run(text: &str) -> Result<(), Trouble> {
    let script = Script::read(text).map_err(|bad| (bad.line, bad.problem))?;
    let begin = |Broken(problem)| (1, problem);
    let mut world = World::new(&script.nodes, &script.policy).map_err(begin)?;
    for moment in &script.moments {
        let at = EPOCH.plus(moment.at);
        let waited = world.wait_until(at);
        waited.map_err(|Broken(p)| (moment.line, with_state(&world, p)))?;
        play_steps(&mut world, &moment.steps)?;
    }
    let last = script.moments.last().map_or(1, |m| m.line);
    world.finish().map_err(|Broken(p)| (last, with_state(&world, p)))
}

fn play_steps(world: &mut World, steps: &[(usize, Step)]) -> Result<(), Trouble> {
    // A step that was refused must be followed by a line that expects it.
    let mut refused: Option<(usize, Rejected)> = None;
    for (line, step) in steps {
        let fail = |world: &World, problem: String| (*line, with_state(world, problem));
        if let Step::Expect(expect::Expect::Refused(words)) = step {
            let reason = refused.take().map(|(_, r)| r.to_string());
            match reason {
                Some(reason) if reason.contains(words.as_str()) => continue,
                Some(reason) => return Err(fail(world, format!("refused: {reason}"))),
                None => return Err(fail(world, "it was accepted".to_owned())),
            }
        }
        if let Some((line, reason)) = refused {
            return Err((line, with_state(world, format!("refused: {reason}"))));
        }
        let taken = take_step(world, step);
        let taken = taken.and_then(|refused| world.settle().map(|()| refused));
        let rejected = taken.map_err(|Broken(problem)| fail(world, problem))?;
        refused = rejected.map(|reason| (*line, reason));
    }
    match refused {
        Some((line, reason)) => Err((line, with_state(world, format!("refused: {reason}")))),
        None => Ok(()),
    }
}

/// One step. What a person asks for may be refused.
fn take_step(world: &mut World, step: &Step) -> Result<Option<Rejected>, Broken> {
    let actor = admin();
    let reply = match step {
        Step::Submit { id, job } => {
            return match world.submit(job)? {
                Ok(given) if given == *id => Ok(None),
                Ok(given) => Err(Broken(format!("jobs are numbered in order: this is {given}"))),
                Err(rejected) => Ok(Some(rejected)),
            };
        }
        Step::Cancel(target) => world.command(Command::Cancel { actor, target: *target })?,
        Step::Hold(job) => world.command(Command::Hold { actor, job: *job })?,
        Step::Release(job) => world.command(Command::Release { actor, job: *job })?,
        Step::Priority(job, priority) => {
            world.command(Command::SetPriority { actor, job: *job, priority: *priority })?
        }
        Step::Saved(task) => world.save(*task)?,
        Step::Drain(node) => {
            let (node, reason) = (node.clone(), "scenario".to_owned());
            world.command(Command::Drain { actor, node, reason, evict: false })?
        }
        Step::Evict(node) => {
            let (node, reason) = (node.clone(), "scenario".to_owned());
            world.command(Command::Drain { actor, node, reason, evict: true })?
        }
        Step::Resume(node) => world.command(Command::Resume { actor, node: node.clone() })?,
        Step::Suspend(target) => world.command(Command::Suspend { actor, target: *target })?,
        Step::Wake(target) => world.command(Command::Wake { actor, target: *target })?,
        Step::Policy(lines) => world.change_policy(lines)?,
        Step::Fail(task) => done(world.fail(*task))?,
        Step::Hang(task, rank) => done(world.hang(*task, *rank))?,
        Step::Accuse(task, by, rank) => done(world.accuse(*task, *by, *rank))?,
        Step::Node(node, what) => done(world.mishap(node, *what))?,
        Step::RestartController => done(world.restart_controller())?,
        Step::Expect(expect) => {
            check::check(world, expect).map_err(Broken)?;
            Ok(Reply::Done)
        }
    };
    Ok(reply.err())
}

fn done(result: Result<(), Broken>) -> Result<Result<Reply, Rejected>, Broken> {
    result.map(|()| Ok(Reply::Done))
}

fn with_state(world: &World, problem: String) -> String {
    format!("{problem}\n\n{}", show::state(world))
}
