//! Tables of runs, whole and broken.

use proptest::prelude::*;
use tutti_planner::predict::{PredictError, predict, to_csv};

const HEAD: &str = "id,accelerator,gpus,seq_len,model,layers,hidden,heads,ffn,vocab,global_batch,micro_batch,tp,pp,dp";

fn errors(line: &str) -> String {
    let answers = predict(&format!("{HEAD}\n{line}\n")).unwrap();
    answers[0].error.clone().unwrap_or_default()
}

#[test]
fn a_row_gives_figures_whatever_the_order_of_columns() {
    let one =
        predict(&format!("{HEAD}\nR1,A100-SXM4-80GB,8,2048,x,24,4096,32,16384,51200,32,2,2,1,4\n"))
            .unwrap();
    let two = predict(
        "dp,pp,tp,micro_batch,global_batch,vocab,ffn,heads,hidden,layers,model,seq_len,gpus,accelerator,id,step_time_s\n\
         4,1,2,2,32,51200,16384,32,4096,24,\"x, \"\"y\"\"\",2048,8,A100-SXM4-80GB,R1,\n",
    )
    .unwrap();
    assert_eq!(one, two);
    assert!(one[0].step_time_s.unwrap() > 0.0 && one[0].mem_gb.unwrap() > 0.0);
    assert!(to_csv(&one).starts_with("id,step_time_s,mem_gb,error\nR1,"));
}

#[test]
fn what_is_missing_is_said_in_a_sentence() {
    assert_eq!(
        errors("R1,A100-SXM4-80GB,8,2048,Foo-1,,4096,32,16384,51200,32,2,2,1,4"),
        "layers is empty and the model 'Foo-1' is not known"
    );
    assert_eq!(
        errors("R1,Abacus,8,2048,x,24,4096,32,16384,51200,32,2,2,1,4"),
        "the accelerator 'Abacus' is not known"
    );
    assert_eq!(
        errors("R1,A100-SXM4-80GB,8,2048,x,24,4096,32,16384,51200,,2,2,1,4"),
        "global_batch is empty"
    );
    assert_eq!(
        errors("R1,A100-SXM4-80GB,8,2048,x,-3,4096,32,16384,51200,32,2,2,1,4"),
        "layers is '-3'; it must be a whole number from 1 to 16,777,216"
    );
    assert_eq!(
        errors("R1,A100-SXM4-80GB,8,2048,x,24,4096,32,16384,51200,32,2,3,1,4"),
        "8 GPUs are not tp 3 × pp 1 × cp 1 × dp"
    );
    assert_eq!(predict("").unwrap_err(), PredictError::Empty);
    assert_eq!(predict("id,gpus\n").unwrap_err(), PredictError::NoColumn("accelerator"));
}

fn cell() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        (0_u64..100_000).prop_map(|n| n.to_string()),
        Just("1e300".to_owned()),
        Just("nan".to_owned()),
        Just("16777216".to_owned()),
        Just("A100-SXM4-80GB".to_owned()),
        "[a-z\",\n.-]{0,6}",
    ]
}

proptest! {
    #[test]
    fn nonsense_is_answered_not_died_of(cells in prop::collection::vec(cell(), 15)) {
        let line = cells.iter().map(|c| format!("\"{}\"", c.replace('"', "\"\""))).collect::<Vec<_>>().join(",");
        for answer in predict(&format!("{HEAD},precision,experts,topk,vp,cp,ep\n{line}\n")).unwrap() {
            prop_assert!(answer.error.is_some() != answer.step_time_s.is_some_and(|s| s.is_finite() && s > 0.0));
        }
    }

    #[test]
    fn any_text_is_a_table_or_an_error(text in "\\PC{0,200}") {
        let _ = predict(&text);
    }
}
