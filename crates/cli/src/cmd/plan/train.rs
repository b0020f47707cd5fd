//! A training: the best layout, how long and how dear, and what it would take to change that.

use tutti_planner::emit::{self, Emit, Emitted};
use tutti_planner::{
    Answer, Arch, Goal, Question, Stack, Workload, run as whole_run, search, what_if,
};

use super::place::{self, Place};
use super::predict::put;
use super::{GoalArg, PlanArgs, Program, input, no_plan};
use crate::fail::Fail;
use crate::show::job::quoted;
use crate::show::plan::{self as text, Plan};
use crate::show::table::terminal_width;
use crate::style::Style;
use crate::terminal;

pub fn run(cluster: Option<&str>, args: &PlanArgs) -> Result<(), Fail> {
    let arch = input::arch(args)?;
    let place = place::find(cluster, args)?;
    let workload = input::workload(args, Some(&place.cluster));
    let question = Question {
        arch: &arch,
        workload: &workload,
        cluster: &place.cluster,
        pins: args.pins.pins(),
        goal: match args.goal {
            Some(GoalArg::Money) => Goal::Money,
            Some(GoalArg::Time) | None => Goal::Time,
        },
        stack: Stack::Current,
        fewer: args.fewer,
    };
    let answer = search(&question).map_err(|e| no_plan(&e))?;
    if let Some(program) = args.write {
        return write(args, program, &place, &arch, &workload, &answer);
    }
    let run = whole_run(&question, &answer.best);
    let what_ifs = what_if(&question, &answer);
    let plan = Plan {
        arch: &arch,
        workload: &workload,
        cluster: &place.cluster,
        answer: &answer,
        run: run.as_ref(),
        what_ifs: &what_ifs,
        currency: &place.currency,
    };
    if args.json {
        return terminal::json(&plan.json());
    }
    let (style, width) = (Style::of_stdout(), terminal_width());
    if args.explain {
        terminal::say(&text::explained(&plan, style, width));
    } else {
        let next = next(args).map_or_else(String::new, |line| format!("\n\nnext: {line}"));
        terminal::say(&format!("{}{next}", text::short(&plan, style)));
    }
    Ok(())
}

/// This command line again, for a job file. Which names its model, and numbers have no name.
fn next(args: &PlanArgs) -> Option<String> {
    args.model.as_ref()?;
    let words = std::env::args_os().skip(1);
    let words: Vec<String> = words.map(|word| quoted(&word.to_string_lossy())).collect();
    Some(format!("tutti {} --write job --out job.toml", words.join(" ")))
}

fn write(
    args: &PlanArgs,
    program: Program,
    place: &Place,
    arch: &Arch,
    workload: &Workload,
    answer: &Answer,
) -> Result<(), Fail> {
    let best = &answer.best;
    let model = match &args.model {
        Some(model) => written_name(model)?,
        None if program == Program::Job => {
            return Err(Fail::usage("a job file names its model, and these are only numbers")
                .hint("save them as a config.json and give its path"));
        }
        None => arch.name.clone(),
    };
    let emit = Emit {
        model: &model,
        arch,
        workload,
        cluster: &place.cluster,
        layout: &best.layout,
        gpu: &place.gpu,
        step_time_s: best.estimate.time.total(),
        memory_gb: best.estimate.memory.total(),
    };
    let emitted = match program {
        Program::Job => Ok(emit::job(&emit)),
        Program::Torchtitan => emit::torchtitan(&emit),
        Program::Megatron => emit::megatron(&emit),
        Program::Deepspeed => emit::deepspeed(&emit),
        // Refused with the flags.
        Program::Vllm => return Ok(()),
    };
    hand_over(args, &emitted.map_err(|e| Fail::usage(e.to_string()))?)
}

pub fn hand_over(args: &PlanArgs, emitted: &Emitted) -> Result<(), Fail> {
    put(args, emitted.text.trim_end())?;
    emitted.notes.iter().for_each(|note| terminal::complain(&format!("note: {note}")));
    Ok(())
}

/// Whoever checks the file may do so from another directory.
fn written_name(model: &str) -> Result<String, Fail> {
    if !input::is_path(model) {
        return Ok(model.to_owned());
    }
    let path = std::path::absolute(model).map_err(|e| Fail::new(format!("{model}: {e}")))?;
    path.into_os_string().into_string().map_err(|p| Fail::usage(format!("{p:?} is not text")))
}
