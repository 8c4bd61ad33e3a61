//! What can be wrong with a stack: each has words of its own that say what to do, and nothing of it
//! goes to stdout.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use insta::assert_snapshot;
use serde_json::json;

use super::{STACK, Stack};
use crate::support::Sandbox;

#[test]
fn no_such_stack() {
    let stack = Stack::missing();
    assert_snapshot!(stack.run("system get-defaults"), @"
    exit 1
    --- stderr
    error: there is no such table (ResourceNotFoundException: Requested resource not found); check the stack name, the region and the endpoint, or create it
    hint: `zae-limiter local up --name cli --port [PORT]` starts the local engine with this stack
    ");
    assert_snapshot!(stack.run("acquire key-1 gpt-4 -c rpm=1 --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"not_found","message":"there is no such table (ResourceNotFoundException: Requested resource not found); check the stack name, the region and the endpoint, or create it","hint":"`zae-limiter local up --name cli --port [PORT]` starts the local engine with this stack"}}
    "#);
    assert_snapshot!(stack.run("namespace list"), @"
    exit 1
    --- stderr
    error: there is no such table (ResourceNotFoundException: Requested resource not found); check the stack name, the region and the endpoint, or create it
    hint: `zae-limiter local up --name cli --port [PORT]` starts the local engine with this stack
    ");
}

/// A table that somebody made by hand, or that was emptied.
#[test]
fn a_table_that_is_none_of_ours() {
    let stack = Stack::new();
    let key = json!({"PK": {"S": "_/SYSTEM#"}, "SK": {"S": "#VERSION"}});
    stack.engine.call("DeleteItem", &json!({"TableName": STACK, "Key": key})).ok();
    assert_snapshot!(stack.run("system get-defaults"), @"
    exit 1
    --- stderr
    error: the table is there but has not been initialised; `zae-limiter local up --name` does so for a local one, `zae-limiter deploy --no-stack --name` for one of Terraform or CDK
    hint: `zae-limiter local up --name cli --port [PORT]` starts the local engine with this stack
    ");
}

#[test]
fn a_schema_of_another_time() {
    let stack = Stack::new();
    stack.overwrite("_/SYSTEM#", "#VERSION", "schema_version", &json!({"S": "1.0.0"}));
    assert_snapshot!(stack.run("system get-defaults"), @r#"
    exit 1
    --- stderr
    error: the schema of the table is "1.0.0"; this version knows 0.10.0: use a release that knows the other
    "#);
    assert_snapshot!(stack.run("namespace list --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"incompatible","message":"the schema of the table is \"1.0.0\"; this version knows 0.10.0: use a release that knows the other"}}
    "#);
    // Minor versions only add.
    stack.overwrite("_/SYSTEM#", "#VERSION", "schema_version", &json!({"S": "0.99.0"}));
    assert_eq!(stack.sandbox.raw("namespace list").0, 0);
}

#[test]
fn no_such_namespace() {
    let stack = Stack::new();
    assert_snapshot!(stack.run("-N nobody acquire key-1 gpt-4 -c rpm=1"), @"
    exit 1
    --- stderr
    error: there is no namespace nobody
    hint: register it with `zae-limiter namespace register nobody`; `zae-limiter namespace list` shows those there are
    ");
    assert_snapshot!(stack.run("-N nobody entity list --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"not_found","message":"there is no namespace nobody","hint":"register it with `zae-limiter namespace register nobody`; `zae-limiter namespace list` shows those there are"}}
    "#);
}

#[test]
fn no_such_entity() {
    let stack = Stack::new();
    for line in ["entity show nobody", "entity update nobody --display-name x"] {
        let shown = stack.run(line);
        let said = "exit 1\n--- stderr\nerror: there is no entity nobody\n";
        assert!(shown.starts_with(said), "{line}: {shown}");
    }
    assert_snapshot!(stack.run("entity show nobody --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"not_found","message":"there is no entity nobody","hint":"create it with `zae-limiter entity create nobody`"}}
    "#);
}

#[test]
fn an_engine_that_does_not_run() {
    let stack = Stack::new();
    let port = stack.engine.endpoint().rsplit(':').next().expect("a port").to_owned();
    let Stack { engine, sandbox } = stack;
    engine.kill();
    let run = |line: &str| sandbox.run(line).replace(&port, "[PORT]");
    assert_snapshot!(run("acquire key-1 gpt-4 -c rpm=1 -l rpm:1"), @"
    exit 1
    --- stderr
    error: stack cli at http://127.0.0.1:[PORT]: the table cannot be reached (dispatch failure: io error: client error (Connect): tcp connect error: Connection refused (os error 111))
    hint: `zae-limiter local up --name cli --port [PORT]` starts the local engine with this stack
    ");
    assert_snapshot!(run("entity list --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"unavailable","message":"stack cli at http://127.0.0.1:[PORT]: the table cannot be reached (dispatch failure: io error: client error (Connect): tcp connect error: Connection refused (os error 111))","hint":"`zae-limiter local up --name cli --port [PORT]` starts the local engine with this stack"}}
    "#);
}

/// Answers every request with this error.
pub(super) fn refusing(error: &str) -> String {
    refusing_with(
        json!({"__type": format!("com.amazon.coral.service#{error}"), "message": "not you"})
            .to_string(),
    )
}

/// Refuses every request with this body.
fn refusing_with(body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let serve = move || {
        for connection in listener.incoming().flatten() {
            // A client that goes away in the middle is no concern of this test.
            let _ = refuse(connection, &body);
        }
    };
    std::thread::Builder::new().name("refusing".into()).spawn(serve).expect("a thread");
    endpoint
}

/// Reads requests to their end, or the answer would be lost with the connection.
fn refuse(connection: TcpStream, body: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut writer = connection;
    loop {
        let mut length = 0;
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            line.clear();
        }
        if length == 0 {
            return Ok(());
        }
        reader.read_exact(&mut vec![0; length])?;
        let head = format!(
            "HTTP/1.1 400 Bad Request\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        writer.write_all(head.as_bytes())?;
        writer.write_all(body.as_bytes())?;
    }
}

#[test]
fn not_allowed() {
    let run = |error: &str, line: &str| {
        let url = format!("dynamodb:{STACK}?endpoint={}", refusing(error));
        Sandbox::new().variable("ZAEL_STORE", &url).run(line)
    };
    assert_snapshot!(run("AccessDeniedException", "acquire key-1 gpt-4 -c rpm=1"), @"
    exit 1
    --- stderr
    error: missing permission on the table: AccessDeniedException: not you; grant the action on the table and its indexes to the caller
    ");
    assert_snapshot!(run("AccessDeniedException", "entity list --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"denied","message":"missing permission on the table: AccessDeniedException: not you; grant the action on the table and its indexes to the caller"}}
    "#);
    assert_snapshot!(run("UnrecognizedClientException", "entity list"), @"
    exit 1
    --- stderr
    error: the AWS credentials are not accepted: UnrecognizedClientException: not you; check the access key, and that it belongs to this region and endpoint
    ");
    assert_snapshot!(run("ExpiredTokenException", "entity list"), @"
    exit 1
    --- stderr
    error: the AWS credentials have expired: ExpiredTokenException: not you; log in again, or check what should renew the credentials
    ");
}

/// A web server that was taken for DynamoDB.
#[test]
fn somebody_else_answers() {
    let endpoint = refusing_with("{}".to_owned());
    let shown =
        Sandbox::new().run(&format!("--store dynamodb:{STACK}?endpoint={endpoint} entity list"));
    assert_snapshot!(shown.replace(&endpoint, "[ENDPOINT]"), @"
    exit 1
    --- stderr
    error: the table did not accept the request, please report it: no code: no message
    hint: check --endpoint-url: is it DynamoDB that answers at [ENDPOINT]?
    ");
}

#[test]
fn stores_that_can_not_be() {
    let sandbox = Sandbox::new();
    let run = |store: &str| sandbox.run(&format!("--store {store} system get-defaults"));
    assert_snapshot!(run("dynamodb:"), @"
    exit 2
    --- stderr
    error: invalid value 'dynamodb:' for '--store <URL>': the stack is missing; write dynamodb:STACK, as in dynamodb:my-app?region=us-east-1

    For more information, try '--help'.
    ");
    assert_snapshot!(run("dynamodb://cli"), @"
    exit 2
    --- stderr
    error: invalid value 'dynamodb://cli' for '--store <URL>': the stack is missing; write dynamodb:STACK, as in dynamodb:my-app?region=us-east-1

    For more information, try '--help'.
    ");
    assert_snapshot!(run("dynamodb:?region=us-east-1"), @"
    exit 2
    --- stderr
    error: invalid value 'dynamodb:?region=us-east-1' for '--store <URL>': the stack is missing; write dynamodb:STACK, as in dynamodb:my-app?region=us-east-1

    For more information, try '--help'.
    ");
    assert_snapshot!(run("dynamodb:cli?regoin=us-east-1"), @r#"
    exit 2
    --- stderr
    error: invalid value 'dynamodb:cli?regoin=us-east-1' for '--store <URL>': "regoin" is not known; after the stack write ?region=REGION and &endpoint=URL

    For more information, try '--help'.
    "#);
    assert_snapshot!(run("dynamodb:cli?region="), @"
    exit 2
    --- stderr
    error: invalid value 'dynamodb:cli?region=' for '--store <URL>': the value of region is missing; write region=VALUE, or leave it out

    For more information, try '--help'.
    ");
    assert_snapshot!(run("dynamodb:cli?region=us-east-1&region=us-east-2"), @"
    exit 2
    --- stderr
    error: invalid value 'dynamodb:cli?region=us-east-1&region=us-east-2' for '--store <URL>': region is given twice; give it once

    For more information, try '--help'.
    ");
    assert_snapshot!(run("dynamodb:my_stack"), @r#"
    exit 2
    --- stderr
    error: stack name "my_stack" contains '_'; use letters, digits and -
    "#);
    assert_snapshot!(run("dynamodb:cli?region=US_EAST"), @r#"
    exit 2
    --- stderr
    error: region "US_EAST" is no region; expected lower-case letters, digits and '-', such as us-east-1
    "#);
    assert_snapshot!(run("dynamodb:cli?endpoint=localhost:8000"), @r#"
    exit 2
    --- stderr
    error: endpoint_url "localhost:8000" has to begin with http:// or https://, such as http://localhost:8000
    "#);
    assert_snapshot!(run("dynamodb:cli?endpoint=http://localhost:port --output json"), @r#"
    exit 2
    --- stderr
    {"error":{"kind":"usage","message":"endpoint_url \"http://localhost:port\" has no valid port; expected a number from 1 to 65535 after the ':'"}}
    "#);
    assert_snapshot!(sandbox.run("--name my_stack system get-defaults"), @r#"
    exit 2
    --- stderr
    error: stack name "my_stack" contains '_'; use letters, digits and -
    "#);
    assert_snapshot!(sandbox.run("--name cli --region Here system get-defaults"), @r#"
    exit 2
    --- stderr
    error: region "Here" is no region; expected lower-case letters, digits and '-', such as us-east-1
    "#);
    assert_snapshot!(sandbox.run("--name cli --endpoint-url nowhere system get-defaults"), @r#"
    exit 2
    --- stderr
    error: endpoint_url "nowhere" has to begin with http:// or https://, such as http://localhost:8000
    "#);
}
