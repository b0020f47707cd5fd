use clap::{CommandFactory, Parser};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    plan: PlanArgs,
}

fn args(line: &str) -> PlanArgs {
    Line::try_parse_from(format!("x {line}").split_whitespace())
        .unwrap_or_else(|e| panic!("{line}: {e}"))
        .plan
}

fn refused(line: &str) -> String {
    let fail = flags::check(None, &args(line)).err().unwrap_or_else(|| panic!("{line} is taken"));
    assert_eq!(fail.exit, 2, "{line}");
    fail.message
}

#[test]
fn what_is_asked_follows_from_the_flags() {
    let mode = |line: &str| flags::check(None, &args(line)).unwrap();
    assert_eq!(mode("llama-3.1-8b --on 8xh100 --tp 2 --explain"), Mode::Train);
    assert_eq!(mode("--layers 4 --hidden 512 --on 8xh100"), Mode::Train);
    assert_eq!(mode("llama-3.1-8b --task inference --rps 3 --tp 2 --write vllm"), Mode::Serve);
    assert_eq!(mode("llama-3.1-8b --tokens 1T --deadline 7d"), Mode::Which);
    assert_eq!(mode("--predict a.csv --out b.csv"), Mode::Predict);
    assert_eq!(mode("--check a.toml --on 8xh100"), Mode::Check);
    assert_eq!(mode("--list gpus --json"), Mode::List);
}

#[test]
fn a_flag_that_would_do_nothing_is_refused() {
    for (line, want) in [
        ("m --task inference --seq 4096", "--seq does nothing with --task inference"),
        ("m --task inference --dp 2", "--dp does nothing with --task inference"),
        ("m --rps 3", "--rps does nothing with the plan of a training"),
        (
            "m --tokens 1T --deadline 7d --on 8xh100",
            "--on does nothing with --deadline and --budget",
        ),
        (
            "m --tokens 1T --budget 7 --explain",
            "--explain does nothing with --deadline and --budget",
        ),
        ("--check a.toml --tp 2", "--tp does nothing with --check"),
        ("--check a.toml m", "MODEL does nothing with --check"),
        ("--predict a.csv --json", "--json does nothing with --predict"),
        ("--list models --on 8xh100", "--on does nothing with --list"),
        ("m --tokens 1T --deadline 7d --budget 3", "--deadline and --budget do not go together"),
        ("m --layers 3", "MODEL and a model by its numbers do not go together"),
        ("m --json --write job", "--json and --write do not go together"),
        ("m --json --explain", "--explain and --json do not go together"),
        ("m --out x", "--out does nothing without --write or --predict"),
        ("m --write vllm", "--write vllm is for --task inference"),
        ("m --task inference --write job", "only --write vllm serves a model"),
        ("m --lora-rank 8", "--lora-rank does nothing without --task lora"),
        ("m --deadline 7d", "how long a run takes and costs depends on --tokens"),
        ("--on 8xh100", "which model?"),
        ("--check a --predict b", "--check and --predict are questions of their own"),
        ("--list gpus --budget 7", "--list and --budget are questions of their own"),
        ("m --tp 1 --sequence-parallel true", "--sequence-parallel true does nothing with --tp 1"),
    ] {
        assert_eq!(refused(line), want, "{line}");
    }
    let named = flags::check(Some("/elsewhere"), &args("m --on 8xh100")).unwrap_err();
    assert_eq!(named.message, "--on and --cluster do not go together");
}

#[test]
fn amounts_are_written_as_people_say_them() {
    for (text, want) in [("2T", 2e12), ("300b", 3e11), ("1.5e12", 1.5e12), ("8k", 8e3), ("7", 7.0)]
    {
        assert_eq!(input::amount(text), Ok(want), "{text}");
    }
    for text in ["", "T", "-1T", "0", "nan", "infT", "2X", "1e40"] {
        assert!(input::amount(text).is_err(), "{text}");
    }
    assert_eq!(input::wait("500ms"), Ok(Span(500)));
    assert!(input::wait("500").is_err() && input::wait("0s").is_err());
    assert_eq!(input::deadline("7d"), Ok(Span(7 * 86_400_000)));
    for text in ["0", "7", "0d", "-7d", "500ms", "200000d"] {
        assert!(input::deadline(text).is_err(), "{text}");
    }
    assert_eq!((input::budget("50000"), input::whole("8")), (Ok(50_000.0), Ok(8)));
    assert!(input::budget("0.5").is_err() && input::budget("-1").is_err());
    assert!(["0", "-1", "1.5", "2000000000"].iter().all(|text| input::whole(text).is_err()));
}

/// What is below 0 is refused by whoever reads the value, who says what is right, and not as an unknown flag.
#[test]
fn values_below_0_are_values() {
    for (line, want) in [
        ("m --tokens -5", "write a number such as"),
        ("m --tokens -5B", "write a number such as"),
        ("m --price -1", "write a number above 0"),
        ("m --budget -1", "a sum of money"),
        ("m --deadline -1d", "a time with its unit"),
        ("m --ttft -1s", "a time with its unit"),
        ("m --batch -1", "a whole number from 1"),
        ("m --tp -1", "a whole number from 1"),
        ("m --zero -1", "write 0, 1, 2 or 3"),
        ("--layers -1", "a whole number from 1"),
    ] {
        let Err(refused) = Line::try_parse_from(format!("x {line}").split_whitespace()) else {
            panic!("{line} is taken")
        };
        assert!(refused.to_string().contains(want), "{line}: {refused}");
    }
    assert_eq!(args("m --on -1xh100").on.as_deref(), Some("-1xh100"));
}

#[test]
fn the_help_says_what_each_flag_is_and_where_it_belongs() {
    let line = Line::command();
    for arg in line.get_arguments() {
        assert!(arg.get_help().is_some(), "{}", arg.get_id());
    }
    let heading = |id: &str| {
        let arg = line.get_arguments().find(|a| a.get_id() == id);
        arg.unwrap_or_else(|| panic!("{id}")).get_help_heading()
    };
    for main in ["on", "task", "seq", "batch", "tokens", "price", "deadline", "explain", "list"] {
        assert_eq!(heading(main), None, "{main}");
    }
    assert_eq!(heading("layers"), Some("A model by its numbers"));
    assert_eq!(heading("tp"), Some("What the layout must have"));
    assert_eq!(heading("rps"), Some("With --task inference"));
}

#[test]
fn names_are_no_paths() {
    for (text, path) in [
        ("llama-3.1-8b", false),
        ("meta-llama/Llama-3.1-8B", false),
        ("./llama", true),
        ("/models/x/config.json", true),
        ("config.json", true),
        ("models/", true),
        // A directory that is there, where tests run.
        ("src", false),
    ] {
        assert_eq!(input::is_path(text), path, "{text}");
    }
}

#[test]
fn defaults_follow_the_task() {
    let work = |line: &str| input::workload(&args(line), None);
    assert_eq!((work("m").seq, work("m").global_batch), (4096, 1024));
    assert_eq!(work("m --task lora").global_batch, 64);
    assert_eq!(work("m --task lora --lora-rank 8").task, tutti_planner::Task::Lora { rank: 8 });
    assert_eq!(work("m --batch 16 --seq 8192").global_batch, 16);
}
