//! What the command line says.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lexopt::{Arg, Parser, ValueExt};

/// What `--help` prints.
pub const HELP: &str = "\
A small DynamoDB-compatible server for development and tests. Not for production: no access control, one process.

Usage: zae-limiter-local [OPTIONS]

Options:
  --host ADDRESS         Address to listen on [default: 127.0.0.1]
  --allow-remote         Allow an address that other machines can reach
  --port PORT            Port to listen on, 0 for any free one [default: 8000]
  --data FILE            Keep the data in this file [default: in memory]
  --port-file FILE       Write the address to this file once listening
  --sweep-seconds N      Delete expired items every N seconds, 0 for only when asked [default: 30]
  --exit-with-stdin      Stop when standard input closes
  --version              Print the version
  --help                 Print this text
";

/// What to do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Command {
    /// Serve until told to stop.
    Serve(Options),
    /// Print [`HELP`].
    Help,
    /// Print the version.
    Version,
}

/// How to serve.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Options {
    /// Where to listen. [`Options::parse`] takes only loopback addresses unless remote ones are
    /// allowed.
    pub host: IpAddr,
    /// The port to listen on; 0 is any free one.
    pub port: u16,
    /// The file with the data; none keeps it in memory.
    pub data: Option<PathBuf>,
    /// Where to write the address once listening.
    pub port_file: Option<PathBuf>,
    /// How often expired items are deleted; none is only when asked.
    pub sweep_every: Option<Duration>,
    /// Whether to stop when standard input closes: a parent that dies takes its server with it.
    pub exit_with_stdin: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8000,
            data: None,
            port_file: None,
            sweep_every: Some(Duration::from_secs(30)),
            exit_with_stdin: false,
        }
    }
}

impl Options {
    /// Reads the arguments after the name of the program.
    pub fn parse(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Command> {
        let mut options = Options::default();
        let mut allow_remote = false;
        let mut parser = Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Arg::Long("host") => options.host = host(&parser.value()?.string()?)?,
                Arg::Long("allow-remote") => allow_remote = true,
                Arg::Long("port") => {
                    options.port =
                        parser.value()?.parse().context("--port takes a number from 0 to 65535")?
                }
                Arg::Long("data") => options.data = Some(parser.value()?.into()),
                Arg::Long("port-file") => options.port_file = Some(parser.value()?.into()),
                Arg::Long("sweep-seconds") => {
                    let seconds =
                        parser.value()?.parse().context("--sweep-seconds takes a whole number")?;
                    options.sweep_every = (seconds > 0).then(|| Duration::from_secs(seconds));
                }
                Arg::Long("exit-with-stdin") => options.exit_with_stdin = true,
                Arg::Long("version") | Arg::Short('V') => return Ok(Command::Version),
                Arg::Long("help") | Arg::Short('h') => return Ok(Command::Help),
                other => return Err(other.unexpected().into()),
            }
        }
        if !options.host.is_loopback() && !allow_remote {
            bail!(
                "--host {} can be reached from other machines, and this server has no access control: \
                 use 127.0.0.1, or add --allow-remote if you mean it",
                options.host
            );
        }
        Ok(Command::Serve(options))
    }
}

fn host(text: &str) -> Result<IpAddr> {
    if text == "localhost" {
        return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    text.parse().with_context(|| format!("--host takes an IP address or localhost, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Command> {
        Options::parse(arguments)
    }

    #[track_caller]
    fn refused(arguments: &[&str], with: &str) {
        let error = format!("{:#}", parse(arguments).unwrap_err());
        assert!(error.contains(with), "{error}");
    }

    #[test]
    fn without_arguments_it_serves_from_memory_on_loopback() {
        assert_eq!(parse(&[]).unwrap(), Command::Serve(Options::default()));
    }

    #[test]
    fn every_option_is_read() {
        let arguments =
            "--host=::1 --port 0 --data d.db --port-file p --sweep-seconds 0 --exit-with-stdin";
        let expected = Options {
            host: "::1".parse().unwrap(),
            port: 0,
            data: Some("d.db".into()),
            port_file: Some("p".into()),
            sweep_every: None,
            exit_with_stdin: true,
        };
        assert_eq!(
            parse(&arguments.split(' ').collect::<Vec<_>>()).unwrap(),
            Command::Serve(expected)
        );
    }

    #[test]
    fn other_machines_are_let_in_only_on_purpose() {
        refused(&["--host", "0.0.0.0"], "--allow-remote");
        refused(&["--host", "192.0.2.1"], "--allow-remote");
        refused(&["--host", "::"], "--allow-remote");
        assert!(parse(&["--host", "0.0.0.0", "--allow-remote"]).is_ok());
        assert!(parse(&["--host", "localhost"]).is_ok());
    }

    #[test]
    fn mistakes_are_named() {
        refused(&["--port", "70000"], "0 to 65535");
        refused(&["--host", "example.org"], "IP address");
        refused(&["--dta", "x"], "--dta");
        refused(&["serve"], "serve");
    }
}
