//! XIDs as NVML tells them: for machines where the kernel's log can't be read. NVML has only the
//! number; the log has the words as well, so it is preferred.

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};

use super::klog::Event;

/// Between looks whether anybody still listens.
const WAIT_MS: u32 = 5_000;

/// Tells `hear` of every XID until that says no more. Holds up its thread.
pub fn listen(mut hear: impl FnMut(Event) -> bool) -> Result<(), NvmlError> {
    let nvml = Nvml::init()?;
    let devices = (0..nvml.device_count()?).filter_map(|i| nvml.device_by_index(i).ok());
    let devices: Vec<Device<'_>> = devices.filter(|d| registers(&nvml, d)).collect();
    if devices.is_empty() {
        return Err(NvmlError::NotSupported);
    }
    let set = registered(&nvml, &devices)?;
    loop {
        let event = match set.wait(WAIT_MS) {
            Ok(data) => match (data.event_data, data.device.pci_info()) {
                (Some(XidError::Value(xid)), Ok(pci)) => Some(xid_event(&pci.bus_id, xid)),
                _ => None,
            },
            Err(NvmlError::Timeout) => None,
            Err(error) => return Err(error),
        };
        // Asked even without one, so that the thread ends when nobody listens: an XID of 0 is none.
        if !hear(event.unwrap_or_else(|| xid_event("", 0))) {
            return Ok(());
        }
    }
}

fn xid_event(pci: &str, xid: u64) -> Event {
    Event::Xid {
        pci: pci.to_owned(),
        xid: u32::try_from(xid).unwrap_or(u32::MAX),
        process: None,
        recovery: None,
        rest: String::new(),
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
