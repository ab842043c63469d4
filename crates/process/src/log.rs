//! The log: lines on stderr, so that stdout is for what commands print.
//!
//! | level | what it promises |
//! |---|---|
//! | error | something is wrong with the service or the books, and a person has to look |
//! | warn | something failed that is tried again or put off by itself; many of them need a person |
//! | info | what happened: one line for each request, starts, stops, changes of state |
//! | debug | why, for developers; no promise about form or amount |

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

/// Begins the log. `RUST_LOG` chooses the lines, `usual` where it is not set; `LOG_FORMAT` their form, which is `text` at a
/// terminal and `json` everywhere else.
pub fn begin(usual: &str) {
    let chosen = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual));
    // Whatever is chosen, the HTTP libraries don't trace: they would write headers, and keys stand in those (I10).
    let quiet = ["hyper=info", "h2=info"].iter().filter_map(|directive| directive.parse::<Directive>().ok());
    let filter = quiet.fold(chosen, EnvFilter::add_directive);
    let terminal = io::stderr().is_terminal();
    let json = std::env::var("LOG_FORMAT").map_or(!terminal, |format| format.trim().eq_ignore_ascii_case("json"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(terminal);
    if json { lines.json().init() } else { lines.init() }
}
