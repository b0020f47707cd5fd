use super::*;

fn shape(words: &str) -> (String, u32, u32, u32) {
    let c = find(words).unwrap();
    (c.gpu.name.clone(), c.nodes, c.gpus_per_node, c.island)
}

fn says(words: &str) -> String {
    find(words).unwrap_err().to_string()
}

#[test]
fn nodes_and_gpus_are_counted_apart() {
    let h100 = || "H100-SXM5-80GB".to_owned();
    assert_eq!(shape("dgx-h100"), (h100(), 1, 8, 8));
    assert_eq!(shape("16xdgx-h100"), (h100(), 16, 8, 8));
    assert_eq!(shape("128xh100"), (h100(), 16, 8, 8));
    assert_eq!(shape("16 × DGX H100"), (h100(), 16, 8, 8));
    assert_eq!(shape("4xp5.48xlarge"), (h100(), 4, 8, 8));
    assert_eq!(shape("2xStandard_ND96isr_H100_v5"), (h100(), 2, 8, 8));
    assert_eq!(shape("4xh100"), (h100(), 1, 4, 4));
    assert_eq!(shape("gb200-nvl72"), ("GB200-NVL72".into(), 18, 4, 72));
    assert_eq!(shape("144xgb200"), ("GB200-NVL72".into(), 36, 4, 72));
}

#[test]
fn every_machine_is_found_and_has_a_cluster() {
    for name in names() {
        let c = find(name).unwrap();
        assert!(c.gpus() >= 1 && c.nic_gbps > 0.0, "{name}");
    }
    assert!(MACHINES.iter().all(|m| machine(m.name).is_some_and(|f| f.name == m.name)));
}

#[test]
fn list_prices_say_their_year() {
    let p = list_price("p5.48xlarge").unwrap();
    assert_eq!((p.dollars, p.year, p.of), (6.88, 2025, "AWS on demand"));
    assert_eq!(find("128xh100").unwrap().price_per_gpu_hour, Some(2.99));
    assert_eq!(list_price("16xdgx-h100").map(|p| p.dollars), Some(2.99));
    assert_eq!(list_price("abacus"), None);
}

#[test]
fn nonsense_is_refused() {
    assert_eq!(says("dgx-h10"), "no machine or GPU is called 'dgx-h10' (did you mean 'dgx-h100'?)");
    assert!(
        says("abacus")
            .starts_with("no machine or GPU is called 'abacus'; the catalogue has such as")
    );
    assert_eq!(says("0xh100"), "'0xh100' asks for 0; a cluster has 1 to 10,000,000 GPUs");
    assert!(says("-3xh100").contains("asks for -3"));
    assert!(says("99999999999999999999xh100").contains("a cluster has 1 to"));
    assert!(says("9999999xdgx-h100").contains("asks for 9,999,999 nodes"));
    assert_eq!(
        says("12xh100"),
        "12 × H100-SXM5-80GB do not fill whole nodes of 8; ask for 8 or 16"
    );
}

#[test]
fn drivers_names_are_understood() {
    let is = |name: &str| gpu(name).map(|g| g.name).unwrap_or_default();
    for (name, kind) in [
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("NVIDIA H200", "H200-SXM5-141GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("a100", "A100-SXM4-80GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA GB200", "GB200-NVL72"),
        ("NVIDIA B200", "B200-SXM-180GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA H20", "H20-SXM-96GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("GeForce RTX 4090", ""),
        ("", ""),
    ] {
        assert_eq!(is(name), kind, "{name}");
    }
    for own in gpus::kinds() {
        assert_eq!(is(own.name), own.name);
        assert_eq!(gpu_with_memory(own.name, own.memory_gb).unwrap().name, own.name);
    }
    assert_eq!(gpu_with_memory("A100", 42.9).unwrap().name, "A100-SXM4-40GB");
    assert_eq!(gpu_with_memory("A100", 85.9).unwrap().name, "A100-SXM4-80GB");
}

#[test]
fn a_file_may_say_little_or_all() {
    let c = from_toml("gpu = \"h100\"\nnodes = 4\nnic_gbps = 100").unwrap();
    assert_eq!((c.gpus(), c.island, c.nic_gbps), (32, 8, 100.0));
    let own = "name = \"lab\"\nnodes = 2\ngpus_per_node = 4\nnic_gbps = 25\nprice_per_gpu_hour = 0.4\n\
               [gpu]\nname = \"RTX 4090\"\nmemory_gb = 24\nhbm_gbps = 1008\nbf16_tflops = 165";
    let c = from_toml(own).unwrap();
    assert_eq!((c.name.as_str(), c.gpu.name.as_str(), c.island), ("lab", "RTX 4090", 1));
    assert_eq!(c.price_per_gpu_hour, Some(0.4));
}

#[test]
fn a_files_nonsense_is_one_sentence() {
    let says = |more: &str| from_toml(&format!("gpu = \"h100\"\n{more}")).unwrap_err().to_string();
    assert_eq!(says(""), "the cluster file lacks 'nodes', how many there are");
    assert_eq!(
        says("nodes = 0"),
        "nodes is 0 in the cluster file; it must be a whole number from 1 to 10,000,000"
    );
    assert!(says("nodes = -1").starts_with("nodes is -1"));
    assert!(says("nodes = 9000000").contains("10,000,000 GPUs or fewer"));
    assert!(says("nodes = 1\nnic_gbps = nan").starts_with("nic_gbps is nan"));
    assert!(says("nodes = 1\nnic_gbps = inf").starts_with("nic_gbps is inf"));
    assert!(says("nodes = 1\nnic_gbps = 0").starts_with("nic_gbps is 0"));
    assert_eq!(
        says("nodes = 1\nnic_gbsp = 4"),
        "the cluster file has a key 'nic_gbsp' that is not known (did you mean 'nic_gbps'?)"
    );
    assert!(says("nodes =").starts_with("the cluster file is not TOML: "));
    assert!(from_toml("gpu = \"h10\"\nnodes = 1").is_err());
    assert!(
        from_toml("gpu = {name = \"abacus\", memory_gb = -1}\nnodes = 1")
            .unwrap_err()
            .to_string()
            .starts_with("gpu.memory_gb is -1")
    );
}

#[test]
fn the_manuals_examples_are_read() {
    let page = include_str!("../../../../docs/reference/planner-inputs.md");
    let examples: Vec<&str> =
        page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(examples.len(), 2);
    let clusters: Vec<Cluster> = examples.iter().map(|e| from_toml(e).unwrap()).collect();
    assert_eq!((clusters[0].gpus(), clusters[1].gpus()), (32, 8));
}
