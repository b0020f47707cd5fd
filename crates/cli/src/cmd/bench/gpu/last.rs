//! What was measured last, as it is kept with the nodes.

use serde::Serialize;
use tutti_model::{GpuBench, GpuRates};
use tutti_wire::api::NodeRow;

use super::report::{giga, number, tera};
use crate::show::table::{Grid, plain};
use crate::show::time;
use crate::style::Style;

#[derive(Debug, Serialize)]
pub struct Row {
    pub node: String,
    #[serde(flatten)]
    pub bench: GpuBench,
}

/// Of the nodes that were measured.
pub fn rows(nodes: &[NodeRow]) -> Vec<Row> {
    let of = |node: &NodeRow| Some(Row { node: node.name.clone(), bench: node.gpu_bench.clone()? });
    nodes.iter().filter_map(of).collect()
}

pub fn table(rows: &[Row], style: Style, width: Option<u16>) -> String {
    if rows.is_empty() {
        return "no GPU was measured yet: tutti bench gpu does it".to_owned();
    }
    let head = [
        "NODE",
        "GPU",
        ">GPUS",
        ">BF16 TFLOP/S",
        ">WORST",
        ">FP8",
        ">COPY GB/S",
        ">WORST",
        "MEASURED",
        "NOTE",
    ];
    let mut grid = Grid::new(&head, style);
    for Row { node, bench } in rows {
        let f = &bench.figures;
        let of = |rates: Option<GpuRates>, unit: fn(u64) -> f64| {
            let figure = |which: fn(GpuRates) -> u64| plain(number(rates.map(|r| unit(which(r)))));
            [figure(|r| r.median), figure(|r| r.worst)]
        };
        let ([matmul, matmul_worst], [fp8, _]) = (of(f.matmul, tera), of(f.fp8, tera));
        let [copy, copy_worst] = of(f.copy, giga);
        grid.row([
            plain(node),
            plain(&f.gpu),
            plain(f.gpus.to_string()),
            matmul,
            matmul_worst,
            fp8,
            copy,
            copy_worst,
            plain(format!("{} by job {}", time::stamp(bench.at), f.job)),
            plain(f.slow.join("; ")),
        ]);
    }
    grid.render(width)
}

#[cfg(test)]
mod tests {
    use super::super::keep::by_node;
    use super::super::report::testing::report;
    use super::*;
    use crate::show::nodes::{self, Columns, tests::node};
    use tutti_model::Time;

    #[test]
    fn what_is_kept_is_shown_and_what_is_slow_stands_in_the_list_of_nodes() {
        let kept = by_node("7".parse().unwrap(), &report([700, 650, 702, 704]));
        let bench = GpuBench { at: Time(0), by: "root".into(), figures: kept["n1"].clone() };
        let measured = NodeRow { gpu_bench: Some(bench), ..node() };
        let rows = rows(&[measured.clone(), NodeRow { name: "n2".into(), ..node() }]);
        assert_eq!(rows.len(), 1);
        let text = table(&rows, Style::PLAIN, None);
        for word in ["NVIDIA H200", "700.0", "650.0", "4100.0", "by job 7", "GPU 1: bf16 is 7 %"] {
            assert!(text.contains(word), "no {word} in\n{text}");
        }
        assert!(table(&[], Style::PLAIN, None).contains("tutti bench gpu"));
        let list = nodes::table(&[measured], Columns::default(), Style::PLAIN, None);
        assert!(list.contains("GPU 1: bf16 is 7 % slower"), "{list}");
    }
}
