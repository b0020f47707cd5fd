//! What the driver's error numbers ask for. Where the driver says itself what has to be done
//! (XID 154, NVML's recovery action), that counts; this table is for the rest.

use tutti_model::{HealthAction, Span};

use super::Keep;

/// The driver's own word for what a GPU needs.
pub const RECOVERY: u32 = 154;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub action: HealthAction,
    /// Programs bring it about themselves, nearly always.
    pub by_job: bool,
    /// In a few words.
    pub what: &'static str,
}

const fn rule(action: HealthAction, what: &'static str) -> Rule {
    Rule { action, by_job: false, what }
}

const fn by_job(what: &'static str) -> Rule {
    Rule { action: HealthAction::RestartJob, by_job: true, what }
}

/// What an XID means. One that is not known is shown, and nothing else.
pub fn rule_of(xid: u32) -> Rule {
    use HealthAction::{FenceGpu, Note, RebootNode, ResetGpu, RestartJob};
    match xid {
        8 => by_job("the GPU stopped processing"),
        11 | 25 | 32 => by_job("an invalid or corrupted push buffer"),
        13 => by_job("a graphics engine exception"),
        31 => by_job("a memory page fault"),
        39..=41 => by_job("an error of the copy or decode engine's channel"),
        68 | 69 => by_job("an exception of the video or graphics engine"),
        94 => rule(RestartJob, "a contained memory error"),

        43 => rule(Note, "a program's channel was reset"),
        45 => rule(Note, "a program was cleaned up after another error"),
        63 => rule(Note, "a row of memory was remapped"),
        92 => rule(Note, "many correctable memory errors"),
        121 => rule(Note, "a corrected error of the chip-to-chip link"),
        137 => rule(Note, "an NVLink fault that a program met"),

        46 => rule(ResetGpu, "the GPU stopped answering"),
        62 => rule(ResetGpu, "an internal micro-controller halted"),
        64 => rule(ResetGpu, "a row of memory could not be remapped"),
        95 => rule(ResetGpu, "an uncontained memory error"),
        109 => rule(ResetGpu, "a context switch timed out"),
        110 => rule(ResetGpu, "a security fault"),
        119 | 120 => rule(ResetGpu, "the GPU's system processor does not answer"),
        136 => rule(ResetGpu, "link training failed"),
        140 => rule(ResetGpu, "an unrecovered memory error"),
        143 => rule(ResetGpu, "the GPU could not be initialised"),
        156 | 158 => rule(ResetGpu, "a fault that only a reset clears"),

        48 => rule(FenceGpu, "an uncorrectable memory error"),
        74 => rule(FenceGpu, "an NVLink error"),
        144 | 145 | 149 => rule(FenceGpu, "an NVLink error"),

        79 => rule(RebootNode, "the GPU has fallen off the bus"),
        _ => rule(Note, "an error that is not in the table"),
    }
}

/// What the driver asks for, as XID 154 and NVML number it. None: nothing is wrong any more.
pub fn recovery(value: u32) -> Option<Rule> {
    use HealthAction::{FenceGpu, RebootNode, ResetGpu};
    Some(match value {
        0 => return None,
        1 => rule(ResetGpu, "the driver asks for a reset of the GPU"),
        2 => rule(RebootNode, "the driver asks for a reboot of the node"),
        3 => rule(FenceGpu, "the driver asks to drain what talks to other GPUs"),
        4 => rule(ResetGpu, "the driver asks to drain and reset the GPU"),
        // Newer than this table: it asks for something, so nothing new starts until somebody looks.
        _ => rule(FenceGpu, "the driver asks for a recovery that tutti does not know"),
    })
}

/// How long such a finding stands.
pub fn keep_of(action: HealthAction) -> Keep {
    match action {
        HealthAction::Note => Keep::For(Span::secs(3600)),
        HealthAction::RestartJob => Keep::For(Span::secs(600)),
        HealthAction::FenceGpu | HealthAction::DrainNode => Keep::UntilResolved,
        HealthAction::ResetGpu | HealthAction::RebootNode => Keep::UntilReboot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use HealthAction::{FenceGpu, Note, RebootNode, ResetGpu, RestartJob};

    /// As NVIDIA's catalogue has it, row by row.
    #[test]
    fn every_xid_of_the_table_leads_to_its_action() {
        let table: [(HealthAction, &[u32]); 6] = [
            (Note, &[43, 63, 92, 121, 137]),
            (RestartJob, &[8, 11, 13, 25, 31, 32, 39, 40, 41, 68, 69, 94]),
            (ResetGpu, &[46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 156, 158]),
            (RebootNode, &[79]),
            (FenceGpu, &[48, 74, 144, 145, 149]),
            // Follows others.
            (Note, &[45]),
        ];
        for (action, xids) in table {
            for &xid in xids {
                assert_eq!(rule_of(xid).action, action, "XID {xid}");
                assert!(!rule_of(xid).what.contains("not in the table"), "XID {xid}");
            }
        }
    }

    #[test]
    fn a_remapped_row_and_a_contained_error_take_no_gpu_out() {
        assert!(rule_of(63).action < FenceGpu && rule_of(94).action < FenceGpu);
        assert!(!rule_of(94).by_job, "memory errors are not the program's doing");
        assert!(rule_of(31).by_job && rule_of(13).by_job);
    }

    #[test]
    fn what_is_not_known_is_shown_and_nothing_else() {
        for xid in [0, 1, 7, 155, 170, 4_000_000] {
            assert_eq!(rule_of(xid).action, Note, "XID {xid}");
        }
    }

    #[test]
    fn the_drivers_word_has_an_action_each() {
        let action = |value| recovery(value).map(|r| r.action);
        assert_eq!(
            [0, 1, 2, 3, 4].map(action),
            [None, Some(ResetGpu), Some(RebootNode), Some(FenceGpu), Some(ResetGpu)]
        );
        assert!((5..8).all(|value| action(value) == Some(FenceGpu)));
    }
}
