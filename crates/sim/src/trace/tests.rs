use tutti_model::{Bytes, GpuRequest, Priority, Span, Time, Topology};

use super::*;

fn error<T: std::fmt::Debug>(read: Result<T, BadLine>) -> String {
    read.expect_err("it is refused").to_string()
}

const PHILLY: &str = "#job id,arrival time (sec),topology,shape,size,duration (sec)\n";

#[test]
fn philly_jobs_are_sorted_and_start_at_zero() {
    let text =
        format!("{PHILLY}7,120.0,CLOS,1,1,60.0\n8,100.5,CLOS,16,16,30.0\n9,130,CLOS,12,12,0\n");
    let trace = read_philly(&text).unwrap();
    assert_eq!(trace.skipped, 1);
    let rows: Vec<_> = trace.jobs.iter().map(|j| (j.name.as_str(), j.submit.0, j.run.0)).collect();
    assert_eq!(rows, [("8", 0, 30_000), ("7", 19_500, 60_000)]);
    assert_eq!(trace.jobs[0].spec.nodes, Some(2));
    assert_eq!(trace.jobs[0].spec.gpus_per_node, Some(GpuRequest { model: None, count: 8 }));
}

#[test]
fn gangs_that_do_not_fill_nodes_are_totals() {
    assert_eq!(gang(12, 8).gpus, Some(12));
    assert_eq!(gang(24, 8).nodes, Some(3));
    assert_eq!(gang(3, 8).gpus_per_node, Some(GpuRequest { model: None, count: 3 }));
}

#[test]
fn load_makes_jobs_come_faster() {
    let mut trace = read_philly(&format!("{PHILLY}1,0,C,1,1,9\n2,100,C,1,1,9\n")).unwrap();
    trace.scale_load(2.0);
    assert_eq!(trace.jobs[1].submit, Time(50_000));
}

#[test]
fn errors_name_line_and_reason() {
    let head = "job_id,num_gpu,submit_time,iterations,model_name,iteration_time\n";
    for (text, want) in [
        (
            format!("{head}0,1,0,10,dqn,100\n1,x,0,10,dqn,100\n"),
            "line 3: num_gpu 'x' is not a number",
        ),
        (
            format!("{head}0,12,0,10,dqn,100\n"),
            "line 2: num_gpu '12' is not 1 to 8, or a multiple of 8",
        ),
        (format!("{head}0,1,0,10,dqn\n"), "line 2: 5 fields where the head has 6"),
        (format!("{head}0,,0,10,dqn,1\n"), "line 2: num_gpu is empty"),
        (format!("{head}0,-1,0,10,dqn,1\n"), "line 2: num_gpu '-1' is not a whole number"),
        ("job_id,num_gpu\n0,1\n".to_owned(), "line 1: there is no column 'submit_time'"),
        (String::new(), "line 1: the file is empty: a head with column names is missing"),
        (format!("{head}0,1,0,10,\"dqn,100\n"), "line 2: a quote is not closed"),
    ] {
        assert_eq!(error(read_muri(&text)), want);
    }
    let late = format!("{PHILLY}1,-5,C,1,1,9\n");
    assert!(error(read_philly(&late)).starts_with("line 2: arrival time (sec) '-5' is not"));
    let many = format!("{PHILLY}1,5,C,1,99999999999,9\n");
    assert!(error(read_philly(&many)).contains("too large"));
}

#[test]
fn muri_service_has_the_allowance() {
    let text = "job_id,num_gpu,submit_time,iterations,model_name,iteration_time\n5,16,2000,1000,vgg16,200\n";
    let jobs = read_muri(text).unwrap();
    assert_eq!((jobs[0].id, jobs[0].gpus, jobs[0].submit_s), (5, 16, 2.0));
    assert!((jobs[0].service_s - 203.0).abs() < 1e-9);
}

#[test]
fn openb_pods_become_jobs() {
    let pods = read_openb_pods(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n\
         a,6000,1024,1,460,V100M16|V100M32\nb,500,1,0,0,\nc,1,1,8,1000,\n",
    )
    .unwrap();
    assert_eq!(pods[0].milli(), 460);
    let gpu = pods[0].spec.gpus_per_node.clone().unwrap();
    assert_eq!(gpu.model.as_deref(), Some("v100m16|v100m32"));
    assert_eq!(pods[0].spec.gpu_share, Some(0.46));
    assert_eq!(
        (pods[0].spec.cpus_per_node, pods[0].spec.mem_per_node),
        (Some(6000), Some(Bytes::gib(1)))
    );
    assert_eq!((pods[1].milli(), pods[1].spec.gpus_per_node.clone()), (0, None));
    assert_eq!((pods[2].milli(), pods[2].spec.gpu_share), (8000, None));
    let bad = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,2,500\n";
    assert!(error(read_openb_pods(bad)).starts_with("line 2: gpu_milli '500' is not"));
    assert_eq!(read_openb_order("2\n0\n\n", 3).unwrap(), [2, 0]);
    assert_eq!(
        error(read_openb_order("0\n7\n", 3)),
        "line 2: row 7 is not in the pod list, which has 3"
    );
    assert_eq!(error(read_openb_order("zero\n", 3)), "line 1: row 'zero' is not a number");
    let nodes =
        read_openb_nodes("sn,cpu_milli,memory_mib,gpu,model\nn,64000,2048,2,P100\n").unwrap();
    assert_eq!((nodes[0].gpus, nodes[0].model.as_str(), nodes[0].mem), (2, "p100", Bytes::gib(2)));
}

#[test]
fn lingjun_hosts_know_their_switches() {
    let text = "ip,DSW,PSW,ASW\nabc,G6,P12,S1\ndef,G6,P10,S1\n";
    let cluster = read_lingjun_topology(text).unwrap();
    assert_eq!(cluster.gpus(), 16);
    let labels = &cluster.nodes[0].labels;
    assert_eq!((labels["rack"].as_str(), labels["rail"].as_str()), ("P10/S1", "P10"));
}

#[test]
fn our_own_columns_are_read_in_any_order() {
    let text = "duration_s,submit_s,user,gpus_per_node,gpu_model,nodes,team,priority,topology,time_limit_s,mem_per_node\n\
        60,10,ada,8,H100,2,vision,high,rack,90,64GiB\n5,0,,,,,,,,,\n";
    let trace = read_csv(text).unwrap();
    let (first, second) = (&trace.jobs[0], &trace.jobs[1]);
    assert_eq!((first.user.as_str(), first.name.as_str()), ("trace", "line-3"));
    assert_eq!(second.spec.gpus_per_node.clone().unwrap().to_string(), "h100:8");
    assert_eq!((second.submit, second.run), (Time(10_000), Span::secs(60)));
    assert_eq!(
        (second.spec.priority, second.spec.topology),
        (Priority::HIGH, Some(Topology::Rack))
    );
    assert_eq!(second.spec.time, Some(Span::secs(90)));
    for (text, part) in [
        ("submit_s,duration_s,colour\n", "line 1: the column 'colour' is unknown"),
        ("submit_s\n", "line 1: there is no column 'duration_s'"),
        ("submit_s,duration_s,topology\n0,1,moon\n", "line 2: topology 'moon' is not one of"),
        ("submit_s,duration_s,priority\n0,1,soon\n", "line 2: priority: "),
        ("submit_s,duration_s,gpu_share\n0,1,7\n", "line 2: gpu_share '7' is not from"),
        ("submit_s,duration_s,min_nodes\n0,1,7\n", "line 2: min_nodes and max_nodes"),
    ] {
        assert!(error(read_csv(text)).starts_with(part), "{}", error(read_csv(text)));
    }
}

#[test]
fn sacct_dumps_are_read() {
    let text = "JobID|JobName|User|Account|Submit|Start|End|State|AllocTRES|Timelimit|Elapsed\n\
        12|train|ada|vision|2026-03-01T00:00:00|2026-03-01T00:01:00|2026-03-01T01:01:00|COMPLETED|billing=16,cpu=64,gres/gpu:a100=16,gres/gpu=16,mem=1T,node=2|1-00:00:00|01:00:00\n\
        12.batch|batch||vision|2026-03-01T00:00:00|||COMPLETED|cpu=1|| 01:00:00\n\
        13_4|cpu only|bob||2026-02-28T23:59:00|Unknown|Unknown|RUNNING|cpu=3,mem=62.50G,node=1|UNLIMITED|00:30:00\n\
        14|gone|bob||2026-03-01T00:00:10|None|2026-03-01T00:00:10|CANCELLED||UNLIMITED|00:00:00\n";
    let trace = read_sacct(text).unwrap();
    assert_eq!(trace.skipped, 1);
    let (cpu, gpu) = (&trace.jobs[0], &trace.jobs[1]);
    assert_eq!((gpu.submit, gpu.run), (Time(60_000), Span::secs(3600)));
    assert_eq!(gpu.spec.nodes, Some(2));
    assert_eq!(gpu.spec.gpus_per_node.clone().unwrap().to_string(), "a100:8");
    assert_eq!((gpu.spec.cpus_per_node, gpu.spec.mem_per_node), (Some(32), Some(Bytes::gib(512))));
    assert_eq!(
        (gpu.spec.time, gpu.spec.team.as_deref()),
        (Some(Span::secs(86_400)), Some("vision"))
    );
    assert_eq!((cpu.name.as_str(), cpu.spec.gpus_per_node.clone()), ("13_4", None));
    assert_eq!(cpu.spec.mem_per_node, Some(Bytes(125 << 29)));
    for (text, part) in [
        (
            "JobID|Submit|ElapsedRaw|AllocTRES\n1|yesterday|5|cpu=1\n",
            "line 2: submit 'yesterday' is not a time",
        ),
        ("JobID|Submit|ElapsedRaw|AllocTRES\n1|2026-13-01T00:00:00|5|cpu=1\n", "line 2: submit"),
        (
            "JobID|Submit|Elapsed|AllocTRES\n1|0|soon|cpu=1\n",
            "line 2: elapsed 'soon' is not a time",
        ),
        (
            "JobID|Submit|ElapsedRaw|AllocTRES\n1|0|5|cpu\n",
            "line 2: AllocTRES 'cpu' is not name=number",
        ),
        ("JobID|Submit|AllocTRES\n", "line 1: there is no column 'ElapsedRaw'"),
        ("JobID|Submit|ElapsedRaw\n", "line 1: there is no column 'AllocTRES'"),
    ] {
        assert!(error(read_sacct(text)).starts_with(part), "{}", error(read_sacct(text)));
    }
}

/// The column is a total, whatever else is said.
#[test]
fn gpus_are_a_total() {
    let read = |row: &str| {
        read_csv(&format!(
            "submit_s,duration_s,nodes,gpus,gpus_per_node,gpu_model,gpu_share\n{row}\n"
        ))
        .map(|t| t.jobs[0].spec.clone())
    };
    let each = |row: &str| {
        let spec = read(row).unwrap();
        (spec.nodes, spec.gpus, spec.gpus_per_node.map(|g| g.to_string()))
    };
    let some = |g: &str| Some(g.to_owned());
    assert_eq!(each("0,1,2,8,,H100,"), (Some(2), None, some("h100:4")));
    assert_eq!(each("0,1,2,8,,,"), (Some(2), None, some("4")));
    assert_eq!(each("0,1,,12,,,"), (None, Some(12), None));
    assert_eq!(each("0,1,,8,,h100,"), (None, None, some("h100:8")));
    assert_eq!(each("0,1,,,,h100,0.5"), (None, None, some("h100:1")));
    for (row, part) in [
        ("0,1,2,9,,,", "line 2: gpus is the total, and 9 do not divide over 2 nodes"),
        ("0,1,0,9,,,", "line 2: gpus is the total, and 9 do not divide over 0 nodes"),
        ("0,1,,8,8,,", "line 2: gpus is the total and excludes gpus_per_node"),
        ("0,1,,16,,h100,", "line 2: 16 gpus: with gpu_model on more than one node"),
        ("0,1,,,,h100,", "line 2: gpu_model needs"),
    ] {
        assert!(error(read(row)).starts_with(part), "{}", error(read(row)));
    }
}

/// What the engine would refuse anywhere is refused with its line.
#[test]
fn bad_specs_name_their_line() {
    let head = "submit_s,duration_s,nodes,topology,min_nodes,max_nodes\n";
    for (row, part) in
        [("0,1,0,,,", "nodes"), ("0,1,2,node,,", "topology"), ("0,1,,,4,2", "elastic")]
    {
        let error = error(read_csv(&format!("{head}0,1,1,,,\n{row}\n")));
        assert!(error.starts_with("line 3: ") && error.contains(part), "{error}");
    }
}

const SACCT: &str = "JobID|JobName|Submit|Elapsed|Timelimit|AllocTRES\n";

#[test]
fn sacct_does_not_quote() {
    let text = format!("{SACCT}7|\"my job|2026-03-01T00:00:00|00:01:00||cpu=1,node=1\n");
    let trace = read_sacct(&text).unwrap();
    assert_eq!(trace.jobs[0].spec.name.as_deref(), Some("\"my job"));
    assert_eq!(trace.epoch, Some(Time(1_772_323_200_000)));
}

#[test]
fn sacct_gpus_are_neither_more_nor_less() {
    let spec = |tres: &str| {
        let text = format!("{SACCT}7|a|2026-03-01T00:00:00|00:01:00||{tres}\n");
        read_sacct(&text).unwrap().jobs[0].spec.clone()
    };
    let uneven = spec("cpu=18,gres/gpu=9,mem=90G,node=2");
    assert_eq!((uneven.nodes, uneven.gpus, uneven.gpus_per_node), (None, Some(9), None));
    assert_eq!((uneven.cpus_per_gpu, uneven.mem_per_gpu), (Some(2), Some(Bytes::gib(10))));
    let mixed = spec("cpu=8,gres/gpu:v100=4,gres/gpu:a100=4,node=2");
    assert_eq!(mixed.gpus_per_node.unwrap().to_string(), "a100|v100:4");
    assert_eq!(mixed.nodes, Some(2));
    for tres in ["cpu=18,gres/gpu=9,node=2", "gres/gpu:v100=4,gres/gpu:a100=4,node=2"] {
        assert_eq!(spec_problem(&spec(tres)), None);
    }
}

#[test]
fn sacct_dates_exist() {
    let read =
        |day: &str| read_sacct(&format!("{SACCT}7|a|{day}T00:00:00|00:01:00||cpu=1,node=1\n"));
    for day in ["2026-02-31", "2026-02-29", "2026-04-31", "2026-01-00", "2026-12-32"] {
        assert!(error(read(day)).contains("is not a time such as"), "{day}");
    }
    for day in ["2024-02-29", "2026-02-28", "2026-12-31"] {
        assert!(read(day).is_ok(), "{day}");
    }
}

/// Slurm notices a limit late: such a job took as long as it took.
#[test]
fn sacct_jobs_that_were_stopped_at_their_limit_run_to_their_end() {
    let text = format!("{SACCT}7|a|2026-03-01T00:00:00|01:00:21|01:00:00|cpu=1,node=1\n");
    let job = read_sacct(&text).unwrap().jobs.remove(0);
    assert_eq!((job.run, job.spec.time), (Span::secs(3621), Some(Span::secs(3621))));
}

#[test]
fn sacct_tasks_that_wait_are_counted() {
    let row = |id: &str| format!("{id}|a|2026-03-01T00:00:00|00:00:00||\n");
    let ids = ["12_[5-9]", "13_[1,3,7-8%2]", "14_[2]", "15_[0-3,...]"];
    let text = format!("{SACCT}{}", ids.map(row).concat());
    assert_eq!(read_sacct(&text).unwrap().skipped, 5 + 4 + 1 + 5);
}

fn read_all(text: &str) {
    let _ = (read_philly(text), read_lingjun(text), read_lingjun_topology(text));
    let _ = (read_muri(text), read_csv(text), read_sacct(text));
    let _ = (read_openb_nodes(text), read_openb_pods(text), read_openb_order(text, 10));
    let _ = crate::replay::Spreading::read(text);
    let _ = crate::cluster::Cluster::from_toml(text);
    let _ = crate::shape::parse_lots(text, "");
}

const HEADS: [&str; 6] = [
    PHILLY,
    "job_id,num_gpu,submit_time,iterations,model_name,iteration_time\n",
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n",
    "submit_s,duration_s,gpus,topology,mem_per_node,time_limit_s\n",
    "JobID|Submit|Elapsed|Start|End|AllocTRES|Timelimit\n",
    "sn,cpu_milli,memory_mib,gpu,model\n",
];

proptest::proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(0u8.., 0..400), head in 0usize..6) {
        let text = String::from_utf8_lossy(&bytes);
        read_all(&text);
        read_all(&format!("{}{text}", HEADS[head]));
    }

    #[test]
    fn no_fields_make_a_reader_panic(
        fields in proptest::collection::vec("[-0-9a-z.:=/TG|,\"x@]{0,12}", 6..7),
        head in 0usize..6,
    ) {
        read_all(&format!("{}{}\n", HEADS[head], fields.join(",")));
        read_all(&format!("{}{}|x\n", HEADS[head], fields.join("|")));
        fields.iter().for_each(|f| read_all(f));
    }
}
