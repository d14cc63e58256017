//! The description of all routes, held against a real server: every request it gives as an example is understood, and every answer
//! is what it says.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeSet;

use boon::{Compiler, Draft, Schemas};
use oxcart_http::Limits;
use serde_json::{Value, json};
use support::{get, post, server};

/// Where validators think that the description is.
const HERE: &str = "https://oxcart.invalid/openapi.json";

/// Holds a value against a schema of the description.
struct Judge(Value);

impl Judge {
    fn check(&self, pointer: &str, value: &Value) -> Result<(), String> {
        let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
        compiler.set_default_draft(Draft::V2020_12);
        compiler.add_resource(HERE, self.0.clone()).unwrap();
        let schema =
            compiler.compile(&format!("{HERE}{pointer}"), &mut schemas).map_err(|error| error.to_string())?;
        schemas.validate(value, schema).map_err(|error| format!("{error:#}"))
    }
}

/// Every reference in a value.
fn references<'v>(value: &'v Value, found: &mut BTreeSet<&'v str>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| match value.as_str().filter(|_| name == "$ref") {
                Some(reference) => drop(found.insert(reference)),
                None => references(value, found),
            })
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn requests_and_answers_are_as_described() {
    let server = server(2, Limits::default());
    let described = get(&server, "/openapi.json");
    assert_eq!((described.status, described.header("content-type")), (200, Some("application/json")));
    let judge = Judge(described.json());
    let (mut tried, mut ids) = (0, BTreeSet::new());
    for (path, methods) in judge.0["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{path}");
            let path = path.replace("{model}", "tiny");
            let schema =
                |content: &Value| content["application/json"]["schema"]["$ref"].as_str().map(str::to_owned);
            let answer = match method.as_str() {
                "get" => get(&server, &path),
                _ => {
                    let request = schema(&operation["requestBody"]["content"]).unwrap();
                    let examples = &judge.0.pointer(request.strip_prefix('#').unwrap()).unwrap()["examples"];
                    let example = &examples[0];
                    judge.check(&request, example).unwrap_or_else(|wrong| panic!("{path}: {wrong}"));
                    // What is no object is no request, and the error has the described form.
                    let refused = post(&server, &path, &json!([]));
                    assert_eq!(refused.status, 400, "{path}");
                    let error = schema(&operation["responses"]["default"]["content"]).unwrap();
                    judge.check(&error, &refused.json()).unwrap_or_else(|wrong| panic!("{path}: {wrong}"));
                    post(&server, &path, example)
                }
            };
            let response = match answer.status {
                200 => "200",
                // A model that answers makes no embeddings, and this one fills no gaps.
                501 => "default",
                status => panic!("{path}: {status}: {}", answer.text()),
            };
            let content = &operation["responses"][response]["content"];
            let kind = answer.header("content-type").unwrap().split(';').next().unwrap();
            match kind {
                "application/json" => {
                    let wanted = schema(content).unwrap_or_else(|| panic!("{path}: JSON is not described"));
                    judge.check(&wanted, &answer.json()).unwrap_or_else(|wrong| panic!("{path}: {wrong}"));
                }
                kind => assert!(content.get(kind).is_some(), "{path}: {kind} is not described"),
            }
            tried += 1;
        }
    }
    assert!(tried > 35, "{tried}");
}

#[test]
fn references_lead_somewhere_and_schemas_are_used() {
    let description = get(&server(1, Limits::default()), "/openapi.json").json();
    let mut found = BTreeSet::new();
    references(&description, &mut found);
    for reference in &found {
        assert!(description.pointer(reference.strip_prefix('#').unwrap()).is_some(), "{reference}");
    }
    for name in description["components"]["schemas"].as_object().unwrap().keys() {
        assert!(found.contains(format!("#/components/schemas/{name}").as_str()), "{name} is not used");
    }
}
