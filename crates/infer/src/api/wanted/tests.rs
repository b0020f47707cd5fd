use super::*;

const ROOM: Room = Room { context: 64, sequences: 8 };

fn completion(body: &str) -> Result<Ask, ApiError> {
    parse(body.as_bytes())?.completion(ROOM, 7)
}

fn chat(body: &str) -> Result<Ask, ApiError> {
    parse(body.as_bytes())?.chat(ROOM, 7)
}

#[test]
fn a_bare_prompt_has_openais_defaults() {
    let ask = completion(r#"{"prompt": "abc"}"#).unwrap();
    let request = &ask.requests[0];
    assert_eq!((&*request.prompt, request.max_tokens), (b"abc".as_slice(), 16));
    assert_eq!(request.sampling, Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, seed: 7 });
    assert_eq!((ask.stream, ask.prompt_tokens, ask.echo), (false, 3, None));
}

#[test]
fn prompts_are_texts_or_tokens_and_each_has_n_choices() {
    let prompts = |body: &str| {
        let ask = completion(body).unwrap();
        let prompts = ask.requests.iter().map(|r| String::from_utf8(r.prompt.to_vec()).unwrap());
        (prompts.collect::<Vec<_>>(), ask.prompt_tokens)
    };
    assert_eq!(prompts(r#"{"prompt": ["a", "bc"]}"#), (vec!["a".into(), "bc".into()], 3));
    assert_eq!(prompts(r#"{"prompt": [104, 105]}"#), (vec!["hi".into()], 2));
    assert_eq!(prompts(r#"{"prompt": [[104], [105]]}"#), (vec!["h".into(), "i".into()], 2));
    assert_eq!(prompts(r#"{"prompt": ""}"#), (vec!["\n".into()], 1));
    let ask = completion(r#"{"prompt": ["a", "b"], "n": 2, "echo": true}"#).unwrap();
    let choices: Vec<usize> = ask.requests.iter().map(|request| request.choice).collect();
    assert_eq!(choices, [0, 1, 0, 1]);
    assert_eq!(ask.echo.unwrap(), ["a", "a", "b", "b"]);
    assert_eq!(ask.prompt_tokens, 2);
}

#[test]
fn without_max_tokens_the_context_is_the_bound() {
    let long = "x".repeat(60);
    let ask = completion(&format!(r#"{{"prompt": "{long}"}}"#)).unwrap();
    assert_eq!(ask.requests[0].max_tokens, 4);
    let ask = chat(r#"{"messages": [{"role": "user", "content": "hi"}]}"#).unwrap();
    assert_eq!(ask.requests[0].max_tokens, 64 - ask.prompt_tokens);
}

#[test]
fn a_conversation_becomes_a_text_to_go_on_with() {
    let ask = chat(
        r#"{"messages": [{"role": "system", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]}], "stop": "!"}"#,
    )
    .unwrap();
    let request = &ask.requests[0];
    assert_eq!(&*request.prompt, b"system: be kind\nuser: hi\nassistant:");
    assert_eq!(*request.stops, ["!", "\nuser:"]);
}

#[test]
fn what_can_not_be_is_named() {
    let long = format!(r#"{{"prompt": "{}"}}"#, "x".repeat(64));
    let stop = format!(r#"{{"prompt": "a", "stop": "{}"}}"#, "x".repeat(65));
    for (body, status, param, says) in [
        ("{", 400, None, "EOF"),
        (r#"{"prompt": 5}"#, 422, Some("prompt"), "a text, a list of texts"),
        (r#"{"prompt": [300]}"#, 422, Some("prompt"), "from 0 to 255"),
        (r#"{"prompt": "a", "n": "x"}"#, 422, Some("n"), "invalid type"),
        ("{}", 422, Some("prompt"), "no prompt"),
        (r#"{"prompt": []}"#, 400, Some("prompt"), "empty"),
        (r#"{"prompt": "a", "temperature": 3}"#, 400, Some("temperature"), "3 is not from 0 to 2"),
        (r#"{"prompt": "a", "top_p": 0}"#, 400, Some("top_p"), "top_p 0"),
        (r#"{"prompt": "a"} x"#, 400, None, "trailing"),
        (r#"{"prompt": ["a", "b"], "n": 5}"#, 400, Some("prompt"), "10 sequences, more than the 8"),
        (&stop, 400, Some("stop"), "a stop string of 65 tokens"),
        (r#"{"prompt": "a", "n": 0}"#, 400, Some("n"), "n 0 is not from 1 to 128"),
        (r#"{"prompt": "a", "max_tokens": 0}"#, 400, Some("max_tokens"), "below 1"),
        (r#"{"prompt": "a", "max_tokens": 64}"#, 400, Some("prompt"), "at most 63 can be made"),
        (&long, 400, Some("prompt"), "leaves no room"),
        (r#"{"prompt": "a", "best_of": 4}"#, 400, Some("best_of"), "best_of"),
        (r#"{"prompt": "a", "presence_penalty": 1}"#, 400, Some("presence_penalty"), "not known"),
        (r#"{"prompt": "a", "logit_bias": {"5": 1}}"#, 400, Some("logit_bias"), "not known"),
        (r#"{"prompt": "a", "logprobs": 99}"#, 400, Some("logprobs"), "from 0 to 20"),
        (r#"{"prompt": "a", "logprobs": 1, "echo": true}"#, 400, Some("logprobs"), "echo"),
    ] {
        let error = completion(body).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (status, param), "{body}");
        assert!(error.message.contains(says), "{body}: {}", error.message);
    }
    assert_eq!(chat("{}").unwrap_err().param.as_deref(), Some("messages"));
}
