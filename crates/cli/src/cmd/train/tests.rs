use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: TrainArgs,
}

fn args(line: &str) -> TrainArgs {
    Line::try_parse_from(format!("train {line}").split_whitespace()).unwrap().args
}

#[test]
fn a_plain_rank_works_on_its_whole_part_at_once_and_a_stage_does_not() {
    let (config, layout) = plan(&args("--batch 8"), 2).unwrap();
    assert_eq!((layout.dp, config.micro_batch), (2, 4));
    let (config, layout) = plan(&args("--pp 2"), 2).unwrap();
    assert_eq!((layout.dp, config.micro_batch, layout.stages), (1, 1, vec![2, 2]));
}

#[test]
fn an_impossible_layout_is_a_usage_error_that_names_the_numbers() {
    for (line, world, says) in [
        ("--tp 3", 3, "--tp 3 does not divide --heads 4"),
        ("--tp 2 --pp 2", 6, "--tp 2 x --pp 2 does not divide the 6 ranks"),
        ("--dp 2", 1, "is 2 ranks, but the gang has 1"),
        ("--heads 3", 1, "--heads 3 does not divide --dim 128"),
        ("--pp 2 --stages 3,2", 2, "--stages 3,2 adds up to 5 layers, but --layers is 4"),
        ("--tp 0", 1, "--tp must be at least 1"),
    ] {
        let fail = plan(&args(line), world).unwrap_err();
        assert_eq!(fail.exit, USAGE);
        assert!(fail.message.contains(says), "{line}: {}", fail.message);
    }
}

#[test]
fn leaving_early_on_a_signal_does_not_look_like_success_unless_wanted() {
    let ended = |why| Ended { why, step: 3, loss: None, tokens_per_s: 0.0, ranks: vec![] };
    let code = |code: ExitCode| format!("{code:?}");
    assert_eq!(code(exit(&ended(Why::Asked), false)), code(ExitCode::from(143)));
    assert_eq!(code(exit(&ended(Why::Asked), true)), code(ExitCode::SUCCESS));
    assert_eq!(code(exit(&ended(Why::Done), false)), code(ExitCode::SUCCESS));
}
