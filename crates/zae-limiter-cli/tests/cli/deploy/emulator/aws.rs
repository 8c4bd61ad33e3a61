//! The emulator, asked by hand: what is there is not taken from the mouth of our own program.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

/// The API of CloudFormation that requests name.
const VERSION: (&str, &str) = ("Version", "2010-05-15");

pub(super) struct Aws {
    host: String,
}

impl Aws {
    pub(super) fn at(endpoint: &str) -> Aws {
        Aws { host: endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned() }
    }

    /// One request; status and body of its answer.
    fn ask(&self, service: &str, start: &str, headers: &str, body: &str) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.host).expect("the emulator");
        // Of version 1.0, so that the answer comes in one piece.
        let request = format!(
            "{start} HTTP/1.0\r\nHost: {}\r\nContent-Length: {}\r\n{headers}\
             Authorization: AWS4-HMAC-SHA256 \
             Credential=test/20260101/us-east-1/{service}/aws4_request, \
             SignedHeaders=host, Signature=0\r\n\r\n{body}",
            self.host,
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("the request is sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        assert!(!head.to_lowercase().contains("chunked"), "{head}");
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
        (status, answer.split_off(end + 4))
    }

    /// A request to CloudFormation.
    pub(super) fn cloudformation(&self, form: &[(&str, &str)]) -> String {
        let encoded = |text: &str| -> String {
            let byte = |byte: u8| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                    char::from(byte).to_string()
                }
                other => format!("%{other:02X}"),
            };
            text.bytes().map(byte).collect()
        };
        let pairs = form.iter().chain([&VERSION]);
        let pairs: Vec<String> =
            pairs.map(|(key, value)| format!("{}={}", encoded(key), encoded(value))).collect();
        let kind = "Content-Type: application/x-www-form-urlencoded\r\n";
        let (_, body) = self.ask("cloudformation", "POST /", kind, &pairs.join("&"));
        String::from_utf8(body).expect("UTF-8")
    }

    /// A stack as CloudFormation describes it, without white space.
    pub(super) fn stack(&self, stack: &str) -> String {
        let form = [("Action", "DescribeStacks"), ("StackName", stack)];
        self.cloudformation(&form).split_whitespace().collect()
    }

    /// A parameter of a stack.
    pub(super) fn parameter(&self, stack: &str, name: &str) -> String {
        let described = self.stack(stack);
        let key = format!("<ParameterKey>{name}</ParameterKey><ParameterValue>");
        let value = described.split(&key).nth(1).and_then(|rest| rest.split('<').next());
        value.unwrap_or_else(|| panic!("{name}: {described}")).to_owned()
    }

    /// The names that the resources of a stack have in its template.
    pub(super) fn resources(&self, stack: &str) -> Vec<String> {
        let form = [("Action", "DescribeStackResources"), ("StackName", stack)];
        let told = self.cloudformation(&form);
        let names = told.split("<LogicalResourceId>").skip(1);
        names.map(|rest| rest.split('<').next().unwrap_or_default().to_owned()).collect()
    }

    /// The configuration of a function, and the zip that it runs.
    pub(super) fn function(&self, name: &str) -> (Value, Vec<u8>) {
        let start = format!("GET /2015-03-31/functions/{name}");
        let (status, body) = self.ask("lambda", &start, "", "");
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        let told: Value = serde_json::from_slice(&body).expect("JSON");
        let place = told["Code"]["Location"].as_str().expect("where the code is");
        let path = place.splitn(4, '/').nth(3).expect("a path");
        let (status, zip) = self.ask("lambda", &format!("GET /{path}"), "", "");
        assert_eq!(status, 200, "{place}");
        (told["Configuration"].clone(), zip)
    }

    /// A request to S3: its status.
    pub(super) fn s3(&self, start: &str, body: &str) -> u16 {
        self.ask("s3", start, "", body).0
    }

    /// A request to DynamoDB.
    pub(super) fn dynamodb(&self, action: &str, request: &Value) {
        let headers = format!(
            "X-Amz-Target: DynamoDB_20120810.{action}\r\n\
             Content-Type: application/x-amz-json-1.0\r\n"
        );
        let (status, body) = self.ask("dynamodb", "POST /", &headers, &request.to_string());
        assert_eq!(status, 200, "{action}: {}", String::from_utf8_lossy(&body));
    }
}

/// The program in the zip of a function, which is the only file of it.
pub(super) fn program_in(zip: &[u8]) -> Vec<u8> {
    let half = |at: usize| usize::from(u16::from_le_bytes([zip[at], zip[at + 1]]));
    assert_eq!((&zip[..4], half(8)), (&b"PK\x03\x04"[..], 8), "deflated");
    let name = 30 + half(26);
    assert_eq!(&zip[30..name], b"bootstrap");
    let mut program = Vec::new();
    let deflated = &zip[name + half(28)..];
    flate2::read::DeflateDecoder::new(deflated).read_to_end(&mut program).expect("deflated");
    program
}
