//! An emulator of AWS on this machine, which is not the local engine: nobody is told to start that
//! in its place.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::Builder;

use serde_json::json;

use super::Stack;
use super::errors::refusing;
use crate::support::Sandbox;

/// An engine behind a door that does not know the engine's own questions.
fn door(engine: &str) -> String {
    let engine = engine.trim_start_matches("http://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let open = move || {
        for client in listener.incoming().flatten() {
            let engine = engine.clone();
            let passing = move || {
                // A client that goes away in the middle is no concern of this test.
                let _ = pass(client, &engine);
            };
            Builder::new().spawn(passing).expect("a thread");
        }
    };
    Builder::new().name("door".into()).spawn(open).expect("a thread");
    endpoint
}

fn pass(mut client: TcpStream, engine: &str) -> std::io::Result<()> {
    let mut first = [0; 10];
    let asked = client.peek(&mut first)?;
    if first[..asked].starts_with(b"GET /_zae") {
        let mut head = BufReader::new(&client).lines();
        while head.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        return client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}");
    }
    let mut server = TcpStream::connect(engine)?;
    let (mut answers, mut asker) = (server.try_clone()?, client.try_clone()?);
    let back = move || {
        let _ = std::io::copy(&mut answers, &mut asker);
        let _ = asker.shutdown(Shutdown::Both);
    };
    Builder::new().spawn(back)?;
    std::io::copy(&mut client, &mut server)?;
    server.shutdown(Shutdown::Both)
}

#[test]
fn a_stack_that_is_missing_there_is_deployed() {
    let endpoint = refusing("ResourceNotFoundException");
    let place = format!("--name cli --endpoint-url {endpoint}");
    for line in ["entity list", "status", "acquire key-1 gpt-4 -c rpm=1"] {
        let shown = Sandbox::new().variable("ZAEL_STORE", "").run(&format!("{line} {place}"));
        let hint = format!("hint: `zae-limiter {place} deploy` makes the stack\n");
        assert!(shown.starts_with("exit 1\n") && shown.ends_with(&hint), "{line}: {shown}");
    }
}

#[test]
fn usage_there_is_counted_by_a_function_or_by_a_worker_of_ones_own() {
    let stack = Stack::new();
    let endpoint = door(stack.engine.endpoint());
    let sandbox = Sandbox::new().variable("ZAEL_STORE", "");
    let place = format!("--name cli --endpoint-url {endpoint}");
    let shown = sandbox.run(&format!("usage list {place}"));
    let said = format!(
        "note: no worker was seen on cli: unless a Lambda counts its usage, `zae-limiter {place} \
         aggregate` does\n"
    );
    assert!(shown.starts_with("exit 0\n") && shown.ends_with(&said), "{shown}");
    stack.overwrite("_/SYSTEM#", "#CHECKPOINT#shardId-1", "seen", &json!({"N": "1000"}));
    for line in ["status", "usage list"] {
        let shown = sandbox.run(&format!("{line} {place}"));
        assert!(shown.contains("has probably ended: unless a Lambda counts usage"), "{shown}");
        assert!(!shown.contains("local up"), "{shown}");
    }
}
