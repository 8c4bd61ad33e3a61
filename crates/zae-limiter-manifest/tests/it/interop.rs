//! Files in the format of the Python package, read by its own reader and by ours.
//!
//! `ZAEL_TEST_PYTHON` names a Python that has `zae-limiter==0.17.0`; `.ci/interop` installs one and
//! runs this. Without it every test here says SKIPPED and passes.

use std::io::Write as _;
use std::process::{Command, Stdio};

use zae_limiter_manifest::Manifest;

use crate::fixture;

const VARIABLE: &str = "ZAEL_TEST_PYTHON";

/// Reads a manifest by the reader of the package, and prints what it understood.
const SCRIPT: &str = "
import json, sys
from zae_limiter_provisioner.manifest import LimitsManifest
print(json.dumps(LimitsManifest.from_yaml(sys.stdin.read()).to_dict(), sort_keys=True))
";

/// What the Python package makes of a file, as JSON, or its error; `None` without the package.
fn by_python(text: &str) -> Option<Result<String, String>> {
    #[expect(clippy::disallowed_methods, reason = "the tests say where Python is")]
    let Some(python) = std::env::var_os(VARIABLE) else {
        // Past the test harness, which would keep it to itself.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: files of limits by the Python package's own reader. .ci/interop runs them."
        );
        return None;
    };
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Python starts");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("Python reads");
    let output = child.wait_with_output().expect("Python ends");
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(match output.status.success() {
        true => Ok(shown(&output.stdout)),
        false => Err(shown(&output.stderr)),
    })
}

fn read(text: &str) -> Manifest {
    Manifest::read(text).unwrap_or_else(|error| panic!("{error}")).manifest
}

/// Defaults, bursts and periods come out the same.
#[test]
fn both_readers_understand_the_same() {
    let text = fixture("python.yaml");
    let Some(understood) = by_python(&text) else { return };
    let understood = understood.expect("the Python package accepts the file");
    assert_eq!(read(&understood).to_yaml(), read(&text).to_yaml());
}

/// What is refused here is refused because of its kind, not because the file is wrong.
#[test]
fn the_kinds_that_are_refused_here_are_good_files_there() {
    let text = fixture("python-kinds.yaml");
    let Some(understood) = by_python(&text) else { return };
    let understood = understood.expect("the Python package accepts the file");
    let refused = Manifest::read(&understood).expect_err("kinds that are not supported");
    let ours = Manifest::read(&text).expect_err("kinds that are not supported");
    let places = |error: &zae_limiter_manifest::ReadError| {
        let mut places: Vec<String> =
            error.problems.iter().map(|problem| problem.path.clone()).collect();
        places.sort();
        places
    };
    assert_eq!(places(&refused), places(&ours));
}

/// An export goes the other way.
#[test]
fn the_python_package_reads_an_export() {
    let text = fixture("python.yaml");
    let Some(understood) = by_python(&text) else { return };
    let understood = understood.expect("the Python package accepts the file");
    let again = by_python(&read(&text).to_yaml()).expect("Python");
    assert_eq!(again.expect("the Python package accepts an export"), understood);
}
