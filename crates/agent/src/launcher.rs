//! How a part's command is started: as it stands, or inside a helper of ours that makes of the gang
//! what the command expects to find.

use tutti_model::{Command, Launch, Launcher};

use crate::helper;

/// The program's words. `program` is this binary.
pub fn argv(launch: &Launch, program: &str) -> Vec<String> {
    let own = command(&launch.spec.run);
    let inside = |kind: &str, own: Vec<String>| {
        let helper = [program, helper::LAUNCH, kind, "--"].map(str::to_owned);
        helper.into_iter().chain(own).collect()
    };
    match launch.spec.launcher {
        Launcher::Mpi if calls_mpirun(&launch.spec.run) => inside("mpi", own),
        Launcher::Mpi => inside("mpi", ["mpirun".to_owned()].into_iter().chain(own).collect()),
        Launcher::Ray => inside("ray", own),
        Launcher::Deepspeed => inside("hostfile", own),
        _ => own,
    }
}

/// Without any launcher.
pub fn command(run: &Command) -> Vec<String> {
    match run {
        Command::Shell(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
        Command::Argv(words) => words.clone(),
    }
}

/// Whether the command calls `mpirun` itself, anywhere in its line.
fn calls_mpirun(run: &Command) -> bool {
    let is_mpirun = |word: &str| {
        let name = word.rsplit('/').next().unwrap_or(word);
        matches!(name, "mpirun" | "mpiexec" | "orterun" | "prterun")
    };
    match run {
        Command::Argv(words) => words.first().is_some_and(|w| is_mpirun(w)),
        Command::Shell(line) => {
            let ends = |c: char| c.is_whitespace() || ";&|()`\"'".contains(c);
            line.split(ends).any(is_mpirun)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tutti_model::JobSpec;

    use super::*;

    fn words(launcher: Launcher, run: Command) -> String {
        let mut launch = crate::testing::launch("1", 1);
        launch.spec = Arc::new(JobSpec { launcher, ..JobSpec::new(run) });
        argv(&launch, "/bin/tutti").join(" ")
    }

    #[test]
    fn mpirun_is_added_unless_the_command_has_its_own() {
        let shell = |line: &str| words(Launcher::Mpi, Command::Shell(line.into()));
        let own = |line: &str| format!("/bin/tutti __launch mpi -- /bin/sh -c {line}");
        for line in ["mpirun -n 2 ./a", "cd x && /opt/ompi/bin/mpiexec ./a", "(mpirun ./a)"] {
            assert_eq!(shell(line), own(line));
        }
        for line in ["./a", "./mpirun-like", "python mpi.py"] {
            let wanted = format!("/bin/tutti __launch mpi -- mpirun /bin/sh -c {line}");
            assert_eq!(shell(line), wanted);
        }
        let argv = |words_: &[&str]| {
            let run = Command::Argv(words_.iter().map(|w| (*w).to_owned()).collect());
            words(Launcher::Mpi, run)
        };
        assert_eq!(argv(&["./a", "mpirun"]), "/bin/tutti __launch mpi -- mpirun ./a mpirun");
        assert_eq!(argv(&["mpirun", "./a"]), "/bin/tutti __launch mpi -- mpirun ./a");
    }

    #[test]
    fn others_run_as_they_are_or_inside_their_helper() {
        let line = || Command::Shell("./a".into());
        for launcher in [Launcher::None, Launcher::Torch, Launcher::Torchrun, Launcher::Jax] {
            assert_eq!(words(launcher, line()), "/bin/sh -c ./a");
        }
        assert_eq!(words(Launcher::Ray, line()), "/bin/tutti __launch ray -- /bin/sh -c ./a");
    }
}
