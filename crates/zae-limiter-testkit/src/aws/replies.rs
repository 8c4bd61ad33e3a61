//! An AWS endpoint that gives recorded replies: for what an emulator does not do as AWS does.

use std::collections::{BTreeMap, VecDeque};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use super::{Asked, answer};

/// A reply: the status line, the type and the body.
type Reply = (&'static str, &'static str, String);

/// The server. It lives as long as the process.
#[derive(Clone, Debug)]
pub struct Replies {
    endpoint: String,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By action. The last reply stays.
    replies: BTreeMap<String, VecDeque<Reply>>,
    /// Every request: its action, its method with its path, and its body.
    asked: Vec<(String, String, String)>,
}

impl Replies {
    /// Starts the server; it has no replies yet.
    #[must_use]
    pub fn start() -> Replies {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let server = Replies { endpoint: format!("http://{address}"), kept: Arc::default() };
        let this = server.clone();
        let replying = move || {
            for stream in listener.incoming().flatten() {
                let Some(asked) = Asked::read(&stream) else { continue };
                let (status, kind, body) = this.reply(&asked);
                answer(&stream, status, &format!("Content-Type: {kind}\r\n"), &body);
            }
        };
        let thread = thread::Builder::new().name("replies".to_owned());
        thread.spawn(replying).expect("a thread");
        server
    }

    /// Where the server is.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// One more reply to an action of CloudFormation: what stands in its result.
    #[must_use]
    pub fn on(self, action: &str, result: &str) -> Replies {
        let body = format!(
            "<{action}Response xmlns=\"http://cloudformation.amazonaws.com/doc/2010-05-15/\">\
             <{action}Result>{result}</{action}Result></{action}Response>"
        );
        self.push(action, ("200 OK", "text/xml", body))
    }

    /// One more reply that is an error.
    #[must_use]
    pub fn error(self, action: &str, code: &str, message: &str) -> Replies {
        let body = format!(
            "<ErrorResponse xmlns=\"http://cloudformation.amazonaws.com/doc/2010-05-15/\"><Error>\
             <Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>\
             </ErrorResponse>"
        );
        self.push(action, ("400 Bad Request", "text/xml", body))
    }

    /// One more reply of any other service, whole. The actions of S3 are the methods: `GET`, `PUT`.
    #[must_use]
    pub fn whole(self, action: &str, status: &'static str, body: &str) -> Replies {
        self.push(action, (status, "application/xml", body.to_owned()))
    }

    /// The requests of an action, each with its body.
    #[must_use]
    pub fn asked(&self, action: &str) -> Vec<String> {
        let kept = self.kept.lock().expect("no test panics with the lock");
        let asked = kept.asked.iter().filter(|(of, ..)| of == action);
        asked.map(|(_, _, body)| body.clone()).collect()
    }

    /// Method and path of all requests, in order: what S3 is asked for is in the path.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        let kept = self.kept.lock().expect("no test panics with the lock");
        kept.asked.iter().map(|(_, path, _)| path.clone()).collect()
    }

    /// The actions of all requests, in order.
    #[must_use]
    pub fn actions(&self) -> Vec<String> {
        let kept = self.kept.lock().expect("no test panics with the lock");
        kept.asked.iter().map(|(action, ..)| action.clone()).collect()
    }

    fn push(self, action: &str, reply: Reply) -> Replies {
        let mut kept = self.kept.lock().expect("no test panics with the lock");
        kept.replies.entry(action.to_owned()).or_default().push_back(reply);
        drop(kept);
        self
    }

    fn reply(&self, asked: &Asked) -> Reply {
        let body = String::from_utf8_lossy(&asked.body).into_owned();
        let form = body.split('&').find_map(|pair| pair.strip_prefix("Action="));
        let action = match (form, asked.header("x-amz-target")) {
            (Some(action), _) => action.to_owned(),
            (None, Some(target)) => target.rsplit('.').next().unwrap_or_default().to_owned(),
            // S3: the method tells.
            (None, None) => asked.start.split(' ').next().unwrap_or_default().to_owned(),
        };
        let mut kept = self.kept.lock().expect("no test panics with the lock");
        kept.asked.push((action.clone(), asked.start.clone(), body));
        let Some(replies) = kept.replies.get_mut(&action) else {
            let body = format!("nobody has recorded a reply to {action}");
            return ("501 Not Implemented", "text/plain", body);
        };
        match replies.len() {
            1 => replies.front().cloned(),
            _ => replies.pop_front(),
        }
        .unwrap_or(("501 Not Implemented", "text/plain", String::new()))
    }
}
