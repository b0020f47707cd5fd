//! Every job that serves an endpoint is known to exactly that endpoint as long as it is not over, and
//! every replica of an endpoint is such a job.

use tutti_model::State;

pub(super) fn check(state: &State) -> Result<(), String> {
    for job in state.jobs.values().filter(|job| !job.is_over()) {
        let Some(of) = job.replica_of.as_deref() else { continue };
        let known: Vec<&String> = state
            .endpoints
            .values()
            .filter(|e| e.replicas.contains_key(&job.id))
            .map(|e| &e.name)
            .collect();
        if known != [&of.endpoint] {
            return Err(format!("{} is a replica of {}, known to {known:?}", job.id, of.endpoint));
        }
    }
    for endpoint in state.endpoints.values() {
        for id in endpoint.replicas.keys() {
            let job = state.job(*id).filter(|job| !job.is_over());
            let of = job.and_then(|job| job.replica_of.as_deref());
            if of.is_none_or(|of| of.endpoint != endpoint.name) {
                return Err(format!("{} has replica {id}, whose job is {job:?}", endpoint.name));
            }
        }
    }
    Ok(())
}
