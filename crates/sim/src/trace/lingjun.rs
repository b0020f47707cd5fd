//! Alibaba's Lingjun cluster: jobs in Philly's columns, and where each host hangs in the network.

use super::{BadLine, Table, Trace};
use crate::cluster::{Cluster, NodeBuilder};

/// Every host has eight GPUs.
const GPUS_PER_HOST: u16 = 8;

pub fn read_jobs(text: &str) -> Result<Trace, BadLine> {
    let mut trace = super::read_philly(text)?;
    trace.jobs.iter_mut().for_each(|j| j.user = "lingjun".to_owned());
    Ok(trace)
}

/// `ip,DSW,PSW,ASW`: core, aggregation and top-of-rack switch of each host. They become site, rail
/// and rack. The names of racks repeat under every aggregation switch, so they carry its name too.
pub fn read_topology(text: &str) -> Result<Cluster, BadLine> {
    let table = Table::new(text, ',')?;
    table.need(&["ip", "dsw", "psw", "asw"])?;
    let mut hosts = Vec::new();
    for row in table.rows() {
        let row = row?;
        let (site, rail) = (row.text("dsw").to_owned(), row.text("psw").to_owned());
        let rack = format!("{rail}/{}", row.text("asw"));
        hosts.push((site, rail, rack));
    }
    // Neighbours in a rack get neighbouring numbers, as a machine room would number them.
    hosts.sort();
    let mut cluster = Cluster::default();
    for (site, rail, rack) in hosts {
        let name = format!("h{:04}", cluster.nodes.len());
        let node = NodeBuilder::new(&name).gpus("a100", GPUS_PER_HOST, 80);
        cluster
            .nodes
            .push(node.label("site", &site).label("rail", &rail).label("rack", &rack).build());
    }
    Ok(cluster)
}
