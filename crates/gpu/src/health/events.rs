//! XIDs as NVML tells them: for machines where the kernel's log can't be read. NVML has only the
//! number; the log has the words as well, so it is preferred.

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, EventSet, Nvml};

use super::klog::Event;
use super::xid::RECOVERY;

/// Between looks whether anybody still listens.
const WAIT_MS: u32 = 5_000;

/// Tells `hear` of every XID, and of none when it begins and now and then, until that says no more.
/// Holds up its thread. Ends at the first error: whoever calls it may do so again.
pub fn listen(mut hear: impl FnMut(Option<Event>) -> bool) -> Result<(), NvmlError> {
    let nvml = Nvml::init()?;
    let devices = (0..nvml.device_count()?).filter_map(|i| nvml.device_by_index(i).ok());
    let devices: Vec<Device<'_>> = devices.filter(|d| registers(&nvml, d)).collect();
    if devices.is_empty() {
        return Err(NvmlError::NotSupported);
    }
    let set = registered(&nvml, &devices)?;
    let mut event = None;
    // Asked even without one, so that the thread ends when nobody listens.
    while hear(event.take()) {
        event = match set.wait(WAIT_MS) {
            Ok(data) => match (data.event_data, data.device.pci_info()) {
                (Some(XidError::Value(xid)), Ok(pci)) => {
                    Some(xid_event(&pci.bus_id, xid, || recovery(&data.device)))
                }
                _ => None,
            },
            Err(NvmlError::Timeout) => None,
            Err(error) => return Err(error),
        };
    }
    Ok(())
}

/// `recovery`: asks the driver what it wants to be done.
fn xid_event(pci: &str, xid: u64, recovery: impl FnOnce() -> Option<u32>) -> Event {
    let xid = u32::try_from(xid).unwrap_or(u32::MAX);
    let recovery = if xid == RECOVERY { recovery() } else { None };
    Event::Xid { pci: pci.to_owned(), xid, process: None, recovery, rest: String::new() }
}

/// What the driver asks for now. None: it is too old to say.
fn recovery(device: &Device<'_>) -> Option<u32> {
    let field = FieldId(field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
    let told = device.field_values_for(&[field]).ok()?.pop()?.ok()?.value.ok()?;
    match told {
        SampleValue::U32(value) => Some(value),
        SampleValue::U64(value) => u32::try_from(value).ok(),
        SampleValue::I64(value) => u32::try_from(value).ok(),
        SampleValue::F64(_) => None,
    }
}

/// A device that can't tell takes the whole set down, so each is tried alone first.
fn registers(nvml: &Nvml, device: &Device<'_>) -> bool {
    let Ok(set) = nvml.create_event_set() else { return false };
    device.register_events(EventTypes::CRITICAL_XID_ERROR, set).is_ok()
}

fn registered<'n>(nvml: &'n Nvml, devices: &[Device<'n>]) -> Result<EventSet<'n>, NvmlError> {
    let mut set = nvml.create_event_set()?;
    for device in devices {
        let wanted = EventTypes::CRITICAL_XID_ERROR;
        set = device.register_events(wanted, set).map_err(|e| e.error)?;
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_asked_what_it_wants_when_that_has_changed() {
        let recovery = |xid| match xid_event("0000:1b:00.0", xid, || Some(2)) {
            Event::Xid { recovery, .. } => recovery,
            other => panic!("{other:?}"),
        };
        assert_eq!((recovery(154), recovery(79)), (Some(2), None));
    }
}
