//! What an imagined GPU is to do, if a job says so: `util=100 sm=6 power=20 memory=97 traffic=0`, in
//! percent. What is not said is as it would be.

use std::str::FromStr;

use tutti_model::{Bytes, GpuSample};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsIf {
    pub util: Option<u8>,
    pub sm: Option<u8>,
    pub power: Option<u8>,
    pub memory: Option<u8>,
    pub traffic: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is none of util=, sm=, power=, memory= and traffic= with 0 to 100")]
pub struct BadAsIf(String);

impl FromStr for AsIf {
    type Err = BadAsIf;
    fn from_str(text: &str) -> Result<AsIf, BadAsIf> {
        let mut as_if = AsIf::default();
        for word in text.split_whitespace() {
            let bad = || BadAsIf(word.to_owned());
            let (name, value) = word.split_once('=').ok_or_else(bad)?;
            let value: u8 = value.parse().ok().filter(|n| *n <= 100).ok_or_else(bad)?;
            let slot = match name {
                "util" => &mut as_if.util,
                "sm" => &mut as_if.sm,
                "power" => &mut as_if.power,
                "memory" => &mut as_if.memory,
                "traffic" => &mut as_if.traffic,
                _ => return Err(bad()),
            };
            *slot = Some(value);
        }
        Ok(as_if)
    }
}

impl AsIf {
    pub fn put_on(self, sample: &mut GpuSample) {
        let share = |percent: u8| f32::from(percent) / 100.0;
        if let Some(util) = self.util {
            sample.util = Some(util);
        }
        if let Some(sm) = self.sm.map(share) {
            (sample.sm_active, sample.engine_active) = (Some(sm), Some(sm));
            sample.tensor_active = sample.tensor_active.map(|tensor| tensor.min(sm));
        }
        if let (Some(power), Some(limit)) = (self.power, sample.power_limit_mw) {
            sample.power_mw = Some(limit / 100 * u32::from(power));
        }
        if let Some(traffic) = self.traffic.map(share) {
            sample.dram_active = Some(traffic);
        }
        if let (Some(memory), Some(used), Some(free)) =
            (self.memory, sample.mem_used, sample.mem_free)
        {
            let total = used.0 + free.0;
            let used = total / 100 * u64::from(memory);
            (sample.mem_used, sample.mem_free) = (Some(Bytes(used)), Some(Bytes(total - used)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_said_changes() {
        let as_if: AsIf = " util=100 power=20\nmemory=97 ".parse().unwrap();
        let mut sample = GpuSample {
            util: Some(3),
            sm_active: Some(0.5),
            power_mw: Some(500_000),
            power_limit_mw: Some(700_000),
            mem_used: Some(Bytes(400)),
            mem_free: Some(Bytes(600)),
            ..GpuSample::default()
        };
        as_if.put_on(&mut sample);
        assert_eq!((sample.util, sample.sm_active), (Some(100), Some(0.5)));
        assert_eq!(sample.power_mw, Some(140_000));
        assert_eq!((sample.mem_used, sample.mem_free), (Some(Bytes(970)), Some(Bytes(30))));
        assert_eq!("".parse(), Ok(AsIf::default()));
        for bad in ["util", "util=101", "heat=3", "util=-1"] {
            assert!(bad.parse::<AsIf>().is_err(), "{bad}");
        }
    }
}
