//! The GPUs that a node offers: real, or imagined.

use tutti_model::{Bytes, Gpu, HardwareProblem};

use crate::fail::Fail;
use crate::terminal;

#[derive(clap::Args)]
pub struct HardwareArgs {
    /// Imagined GPUs on each node; implies --simulate [default: 8 if simulated]
    #[arg(
        long, value_name = "G", value_parser = clap::value_parser!(u16).range(0..=64),
        allow_negative_numbers = true
    )]
    gpus_per_node: Option<u16>,
    /// Model of the imagined GPUs [default: h100]
    #[arg(long, value_name = "MODEL")]
    gpu_model: Option<String>,
    /// Imagine the GPUs even if there are real ones; processes are real
    #[arg(long)]
    simulate: bool,
}

impl HardwareArgs {
    pub fn are_given(&self) -> bool {
        self.simulate || self.gpus_per_node.is_some() || self.gpu_model.is_some()
    }
}

pub struct Hardware {
    pub gpus: Vec<Gpu>,
    pub simulated: bool,
    /// None if it is imagined: that follows from the node's CPUs and memory.
    pub facts: Option<tutti_model::Hardware>,
}

impl Hardware {
    /// An agent without real GPUs offers none, unless told to imagine some.
    pub fn find(args: &HardwareArgs) -> Result<Hardware, Fail> {
        if args.are_given() {
            return Ok(Hardware::imagined(args));
        }
        let found = tutti_gpu::discover();
        Ok(Hardware { gpus: found.gpus, simulated: false, facts: Some(found.hardware) })
    }

    /// `tutti up` on a machine without GPUs is a trial, so it imagines them.
    pub fn find_for_up(args: &HardwareArgs) -> Result<Hardware, Fail> {
        let real = Hardware::find(args)?;
        if !real.gpus.is_empty() || real.simulated {
            return Ok(real);
        }
        for problem in real.facts.iter().flat_map(|facts| &facts.problems) {
            terminal::complain(&not_used(problem));
        }
        Ok(Hardware::imagined(args))
    }

    fn imagined(args: &HardwareArgs) -> Hardware {
        let model = args.gpu_model.as_deref().unwrap_or("h100");
        Hardware::simulated(args.gpus_per_node.unwrap_or(8), model)
    }

    pub fn simulated(gpus: u16, model: &str) -> Hardware {
        Hardware { gpus: tutti_gpu::simulated::gpus(gpus, model), simulated: true, facts: None }
    }
}

/// Whoever has GPUs must not take imagined ones for them.
fn not_used(problem: &HardwareProblem) -> String {
    let at = problem.pci.as_ref().map_or_else(String::new, |pci| format!("{pci}: "));
    format!(
        "the GPUs of this machine can't be used, so they are simulated: {at}{}",
        problem.message
    )
}

/// CPUs and memory that go with imagined GPUs, as in a usual GPU server. With the laptop's own two
/// cores, a simulated cluster would refuse most jobs.
pub fn imagined_host(gpus: usize) -> (u32, Bytes) {
    let gpus = gpus.max(1) as u64;
    (16 * gpus as u32, Bytes::gib(128 * gpus))
}

pub fn host_name() -> Result<String, Fail> {
    let name = nix::unistd::gethostname()
        .map_err(|e| Fail::new(format!("the host's name can't be read: {e}")))?;
    let name = name.to_string_lossy().into_owned();
    Ok(name.split('.').next().unwrap_or(&name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_that_can_not_be_used_are_not_silently_imagined() {
        let kind = tutti_model::HardwareProblemKind::Driver;
        let message = "there is no NVIDIA driver on this machine".to_owned();
        let said = not_used(&HardwareProblem { kind, pci: None, message });
        assert!(said.contains("so they are simulated: there is no NVIDIA driver"), "{said}");
    }

    #[test]
    fn imagined_nodes_are_servers() {
        assert_eq!(imagined_host(8), (128, Bytes::gib(1024)));
        assert_eq!(imagined_host(0), (16, Bytes::gib(128)));
        let args = HardwareArgs { gpus_per_node: Some(2), gpu_model: None, simulate: false };
        let hardware = Hardware::find(&args).unwrap();
        assert!(hardware.simulated);
        assert_eq!(hardware.gpus.len(), 2);
    }
}
