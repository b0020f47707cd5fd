//! Tables of runs, whole and broken.

use proptest::prelude::*;
use tutti_planner::predict::{PredictError, predict, to_csv};

const HEAD: &str = "id,accelerator,gpus,seq_len,model,layers,hidden,heads,ffn,vocab,global_batch,micro_batch,tp,pp,dp,gated_mlp,sharding,recompute,task";

fn errors(line: &str) -> String {
    let answers = predict(&format!("{HEAD}\n{line}\n")).unwrap();
    answers[0].error.clone().unwrap_or_default()
}

#[test]
fn a_row_gives_figures_whatever_the_order_of_columns() {
    let one = predict(&format!(
        "{HEAD}\nR1,A100-SXM4-80GB,8,2048,x,24,4096,32,16384,51200,32,2,2,1,4,0\n"
    ))
    .unwrap();
    let two = predict(
        "gated_mlp,dp,pp,tp,micro_batch,global_batch,vocab,ffn,heads,hidden,layers,model,seq_len,gpus,accelerator,id,step_time_s\n\
         0,4,1,2,2,32,51200,16384,32,4096,24,\"x, \"\"y\"\"\",2048,8,A100-SXM4-80GB,R1,\n",
    )
    .unwrap();
    assert_eq!(one, two);
    assert!(one[0].step_time_s.unwrap() > 0.0 && one[0].mem_gb.unwrap() > 0.0);
    assert!(to_csv(&one).starts_with("id,step_time_s,mem_gb,error\nR1,"));
}

#[test]
fn what_is_missing_is_said_in_a_sentence() {
    assert_eq!(
        errors("R1,A100-SXM4-80GB,8,2048,Foo-1,,4096,32,16384,51200,32,2,2,1,4,0"),
        "layers is empty and the model 'Foo-1' is not known"
    );
    assert_eq!(
        errors("R1,Abacus,8,2048,x,24,4096,32,16384,51200,32,2,2,1,4,0"),
        "the accelerator 'Abacus' is not known"
    );
    assert_eq!(
        errors("R1,A100-SXM4-80GB,8,2048,x,24,4096,32,16384,51200,,2,2,1,4,0"),
        "global_batch is empty"
    );
    assert_eq!(
        errors("R1,A100-SXM4-80GB,8,2048,x,-3,4096,32,16384,51200,32,2,2,1,4,0"),
        "layers is '-3'; it must be a whole number from 1 to 16,777,216"
    );
    assert_eq!(
        errors("R1,A100-SXM4-80GB,8,2048,x,24,4096,32,16384,51200,32,2,3,1,4,0"),
        "8 GPUs are not tp 3 × pp 1 × cp 1 × dp"
    );
    assert_eq!(predict("").unwrap_err(), PredictError::Empty);
    assert_eq!(predict("id,gpus\n").unwrap_err(), PredictError::NoColumn("accelerator"));
}

#[test]
fn words_that_are_none_are_named() {
    let row = |tail: &str| {
        errors(&format!("R1,A100-SXM4-80GB,8,2048,x,24,4096,32,16384,51200,32,2,2,1,4,{tail}"))
    };
    assert_eq!(row("0,zero1,full,sft"), "");
    assert_eq!(
        row("0,banana"),
        "sharding is 'banana', which is no word for it; write none, zero1, zero2 or zero3"
    );
    assert!(row("0,,apple").starts_with("recompute is 'apple', "));
    assert!(row("0,,,cherry").starts_with("task is 'cherry', "));
    assert!(row("maybe").starts_with("gated_mlp is 'maybe', "));
    assert_eq!(row(""), "gated_mlp is empty");
}

#[test]
fn what_is_not_said_of_a_model_is_known_by_its_name() {
    let all = "R1,A100-SXM4-80GB,8,4096,";
    let whole = "32,4096,32,14336,128256,16,1,2,1,4,";
    let seconds = |line: &str| {
        let one = predict(&format!("{HEAD},kv_heads\n{line}\n")).unwrap().remove(0);
        assert_eq!(one.error, None, "{line}");
        one.step_time_s.unwrap()
    };
    let told = seconds(&format!("{all}Foo-1,{whole}1,,,,8"));
    assert_eq!(seconds(&format!("{all}Llama-3.1-8B,{whole},,,,8")), told);
    assert_eq!(seconds(&format!("{all}Llama-3.1-8B,,,,,,16,1,2,1,4")), told);
    assert_eq!(
        errors(&format!("{all},,,,,,16,1,2,1,4")),
        "layers is empty, and no model is named that it could be taken from"
    );
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
    fn nonsense_is_answered_not_died_of(cells in prop::collection::vec(cell(), 18)) {
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
