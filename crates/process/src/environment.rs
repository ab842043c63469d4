//! Configuration from the environment. Every fault is reported at once, by the variable's name and never with its value: that
//! may be a secret.

use std::ffi::OsString;
use std::fmt;

use ledger::Database;
use secrecy::{ExposeSecret, SecretString};
use tracing_subscriber::EnvFilter;

use crate::traces;

/// How strict a deployment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// One machine, one broker, and secrets that everybody can read. It survives a kill, not a lost disk.
    Demo,
    /// Secrets of one's own, and replicas.
    Production,
}

/// A variable of the environment: what reading it goes by, and what `docs/configuration.md` says of it.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name. A secret may stand in a file instead, which the variable of this name and `_FILE` names.
    pub name: &'static str,
    /// Whether it is a secret.
    pub secret: bool,
    /// What counts where it is not set.
    pub unset: Unset,
    /// What a value must be.
    pub bounds: Bounds,
    /// What it is for.
    pub meaning: &'static str,
}

impl Variable {
    /// One that is no secret.
    #[must_use]
    pub const fn plain(name: &'static str, unset: Unset, bounds: Bounds, meaning: &'static str) -> Self {
        Self { name, secret: false, unset, bounds, meaning }
    }

    /// A secret.
    #[must_use]
    pub const fn secret(name: &'static str, unset: Unset, bounds: Bounds, meaning: &'static str) -> Self {
        Self { name, secret: true, unset, bounds, meaning }
    }
}

/// What counts where a variable is not set.
#[derive(Clone, Copy, Debug)]
pub enum Unset {
    /// The start is refused.
    Refused,
    /// The process goes without.
    Nothing,
    /// This value, which is read as if it were set.
    Default(&'static str),
    /// One of these values, by the profile.
    ByProfile {
        /// The value in [`Profile::Production`].
        production: &'static str,
        /// The value in [`Profile::Demo`].
        demo: &'static str,
    },
}

impl fmt::Display for Unset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("the start is refused"),
            Self::Nothing => f.write_str("none"),
            Self::Default(value) => write!(f, "`{value}`"),
            Self::ByProfile { production, demo } => write!(f, "`{production}`; `{demo}` in `demo`"),
        }
    }
}

/// What a value must be. It is shown as the rest of a sentence that begins with the variable and "must be".
#[derive(Clone, Copy, Debug)]
pub enum Bounds {
    /// A whole number within a range, both ends included.
    Number(u64, u64),
    /// One of these words; upper and lower case are the same.
    OneOf(&'static [&'static str]),
    /// Told in words; whoever reads the value judges it.
    Form(&'static str),
}

impl Bounds {
    /// A value as it is meant: a word as it is listed here. `None` where it is out of bounds.
    fn take(&self, text: String) -> Option<String> {
        match self {
            Self::Number(min, max) => {
                text.parse().is_ok_and(|number: u64| (*min..=*max).contains(&number)).then_some(text)
            }
            Self::OneOf(words) => {
                words.iter().find(|word| word.eq_ignore_ascii_case(&text)).map(|word| (*word).to_owned())
            }
            Self::Form(_) => Some(text),
        }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(min, max) => write!(f, "a whole number from {min} to {max}"),
            Self::OneOf(words) => write!(f, "one of {}", words.join(", ")),
            Self::Form(form) => f.write_str(form),
        }
    }
}

/// The ledger's database, for every process alike.
pub const DATABASE_URL: Variable = Variable::secret(
    "DATABASE_URL",
    Unset::Refused,
    Bounds::Form("a URL such as postgres://user:password@host:5432/name"),
    "Where PostgreSQL is, version 15 to 18.",
);
/// Which lines are logged.
pub const RUST_LOG: Variable = Variable::plain(
    "RUST_LOG",
    Unset::Default("info"),
    Bounds::Form("levels such as info or warn,ledger=debug"),
    "Which lines are logged.",
);
/// The form of the log's lines.
pub const LOG_FORMAT: Variable = Variable::plain(
    "LOG_FORMAT",
    Unset::Nothing,
    Bounds::OneOf(&["text", "json"]),
    "The form of the log's lines; unless set, `text` at a terminal and `json` everywhere else.",
);
/// Where traces go.
pub const OTEL_EXPORTER_OTLP_ENDPOINT: Variable = Variable::plain(
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    Unset::Nothing,
    Bounds::Form("a URL that begins with http://, such as http://collector:4318"),
    "The OpenTelemetry collector that traces are sent to, by OTLP over HTTP; none are recorded unless set.",
);
/// How many traces are recorded.
pub const OTEL_TRACES_SAMPLER_ARG: Variable = Variable::plain(
    "OTEL_TRACES_SAMPLER_ARG",
    Unset::Default("1"),
    Bounds::Form("a number from 0 to 1"),
    "The part of the traces that begin here which is recorded. Whoever calls with `traceparent` decides for its own.",
);

/// One thing that is wrong with the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The variable, or several of them.
    pub variable: String,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.variable, self.problem)
    }
}

/// Everything that is wrong with the environment, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub Vec<Fault>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration can't be used:")?;
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl std::error::Error for ConfigError {}

/// Reads one variable after the other and gathers what is wrong with them.
pub struct Reader<F> {
    find: F,
    profile: Profile,
    faults: Vec<Fault>,
}

/// A reader of this process's own variables.
pub fn process_variables() -> Reader<impl Fn(&str) -> Option<OsString>> {
    Reader::new(|name: &str| std::env::var_os(name))
}

impl<F: Fn(&str) -> Option<V>, V: Into<OsString>> Reader<F> {
    /// Reads variables that `find` finds by their names, in [`Profile::Production`] until another is read or set.
    pub const fn new(find: F) -> Self {
        Self { find, profile: Profile::Production, faults: Vec::new() }
    }

    /// Reads as in this profile from now on.
    #[must_use]
    pub fn in_profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// The profile that is read in.
    pub const fn profile(&self) -> Profile {
        self.profile
    }

    /// Reads the profile from its variable, whose words are `production` and `demo`.
    pub fn read_profile(&mut self, variable: &Variable) {
        if self.text(variable).as_deref() == Some("demo") {
            self.profile = Profile::Demo;
        }
    }

    /// Notes a fault.
    pub fn fault(&mut self, variable: impl Into<String>, problem: impl Into<String>) {
        self.faults.push(Fault { variable: variable.into(), problem: problem.into() });
    }

    /// Notes that a value is none.
    pub fn refuse(&mut self, variable: &Variable) {
        self.fault(variable.name, format!("must be {}", variable.bounds));
    }

    /// What was read, unless something was wrong with any of it.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn finish<T>(self, read: Option<T>) -> Result<T, ConfigError> {
        match read {
            Some(read) if self.faults.is_empty() => Ok(read),
            Some(_) | None => Err(ConfigError(self.faults)),
        }
    }

    /// Whether something is wrong with this variable already.
    pub fn faulty(&self, name: &str) -> bool {
        self.faults.iter().any(|fault| fault.variable == name)
    }

    /// How many faults there are so far: where a step that gave nothing has added none, nothing was set.
    pub fn faults(&self) -> usize {
        self.faults.len()
    }

    /// What is set. An empty variable counts as none: that is how compose files leave one out.
    pub fn given(&mut self, name: &str) -> Option<String> {
        match (self.find)(name)?.into().into_string() {
            Ok(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
            Err(_) => {
                self.fault(name, "is not UTF-8");
                None
            }
        }
    }

    /// What is set within its bounds, or what counts where nothing is; `None` where there is neither, or it is refused.
    pub fn text(&mut self, variable: &Variable) -> Option<String> {
        let before = self.faults.len();
        if let Some(text) = self.given(variable.name) {
            let taken = variable.bounds.take(text);
            if taken.is_none() {
                self.refuse(variable);
            }
            return taken;
        }
        match (variable.unset, self.profile) {
            (Unset::Refused, _) => {
                if self.faults.len() == before {
                    self.fault(variable.name, format!("must be set to {}", variable.bounds));
                }
                None
            }
            (Unset::Nothing, _) => None,
            (Unset::Default(value), _)
            | (Unset::ByProfile { production: value, .. }, Profile::Production)
            | (Unset::ByProfile { demo: value, .. }, Profile::Demo) => Some(value.to_owned()),
        }
    }

    /// The same, as what `parse` makes of it; where that is nothing, the value is refused.
    pub fn parsed<T>(&mut self, variable: &Variable, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text(variable)?;
        let parsed = parse(&text);
        if parsed.is_none() {
            self.refuse(variable);
        }
        parsed
    }

    /// A secret from the variable, or from the file that the variable with `_FILE` names; `None` where there is neither, or it
    /// is refused.
    pub fn secret(&mut self, variable: &Variable) -> Option<SecretString> {
        let (name, file_name) = (variable.name, format!("{}_FILE", variable.name));
        match (self.given(name), self.given(&file_name)) {
            (Some(_), Some(_)) => {
                self.fault(name, format!("and {file_name} are both set; set one"));
                None
            }
            (Some(text), None) => Some(text.into()),
            (None, Some(path)) => match std::fs::read_to_string(path) {
                Ok(text) => Some(text.trim().to_owned().into()),
                Err(error) => {
                    self.fault(&file_name, format!("names a file that can't be read: {}", error.kind()));
                    None
                }
            },
            (None, None) => None,
        }
    }

    /// A secret that has to be given.
    pub fn required_secret(&mut self, variable: &Variable) -> Option<SecretString> {
        let before = self.faults.len();
        let given = self.secret(variable);
        if given.is_none() && self.faults.len() == before {
            let Variable { name, bounds, .. } = variable;
            self.fault(*name, format!("or {name}_FILE must be set to {bounds}"));
        }
        given
    }

    /// Where the ledger is.
    pub fn database(&mut self) -> Option<Database> {
        let url = self.required_secret(&DATABASE_URL)?;
        let database = Database::from_url(url.expose_secret()).ok();
        if database.is_none() {
            self.refuse(&DATABASE_URL);
        }
        database
    }

    /// Where traces go, if anywhere, and how many of those that begin here.
    pub fn traces(&mut self, ratio: f64) -> Option<traces::Settings> {
        let endpoint =
            self.parsed(&OTEL_EXPORTER_OTLP_ENDPOINT, |text| text.starts_with("http://").then(|| text.to_owned()))?;
        Some(traces::Settings { endpoint, ratio })
    }

    /// Judges the log's variables. The log has begun before this, with what could be used of them.
    pub fn judge_log(&mut self) {
        self.parsed(&RUST_LOG, |text| EnvFilter::try_new(text).ok());
        self.text(&LOG_FORMAT);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    const NUMBER: Variable = Variable::plain("NUMBER", Unset::Default("3"), Bounds::Number(1, 5), "A number.");
    const WORD: Variable = Variable::plain("WORD", Unset::Nothing, Bounds::OneOf(&["text", "JSON"]), "A word.");

    fn reader(set: &[(&'static str, &'static str)]) -> Reader<impl Fn(&str) -> Option<String> + use<>> {
        let set: std::collections::HashMap<_, _> = set.iter().copied().collect();
        Reader::new(move |name: &str| set.get(name).map(|text| (*text).to_owned()))
    }

    fn told(error: Result<(), ConfigError>) -> Vec<String> {
        error.err().map(|error| error.0.iter().map(ToString::to_string).collect()).unwrap_or_default()
    }

    #[test]
    fn values_are_taken_within_their_bounds_and_words_as_they_are_listed() {
        for (text, expected) in
            [("1", Some("1")), ("5", Some("5")), ("0", None), ("6", None), ("-1", None), ("x", None)]
        {
            let mut reader = reader(&[("NUMBER", text)]);
            assert_eq!(reader.text(&NUMBER).as_deref(), expected);
            assert_eq!(reader.faults(), usize::from(expected.is_none()));
        }
        let mut reader = reader(&[("WORD", " json "), ("NUMBER", " ")]);
        assert_eq!((reader.text(&WORD).as_deref(), reader.text(&NUMBER).as_deref()), (Some("JSON"), Some("3")));
    }

    #[test]
    fn a_secret_stands_in_one_place_and_is_in_no_fault() {
        let folder = std::env::temp_dir().join(format!("oncepost-secret-{}", std::process::id()));
        std::fs::write(&folder, "postgres://u:hunter2@db/books\n").unwrap();
        let path: &'static str = folder.to_str().unwrap().to_owned().leak();
        assert!(reader(&[("DATABASE_URL_FILE", path)]).database().is_some());
        std::fs::remove_file(path).unwrap();

        for set in [
            &[("DATABASE_URL", "postgres://u:hunter2@db/books"), ("DATABASE_URL_FILE", path)][..],
            &[("DATABASE_URL_FILE", path)],
            &[("DATABASE_URL", "hunter2")],
            &[],
        ] {
            let mut reader = reader(set);
            assert!(reader.database().is_none());
            let told = told(reader.finish(Some(())));
            assert!(told.len() == 1 && told[0].starts_with("DATABASE_URL") && !told[0].contains("hunter2"), "{told:?}");
        }
    }

    #[test]
    fn text_that_is_not_utf_8_is_one_fault() {
        let mut reader = Reader::new(|_: &str| Some(OsString::from_vec(vec![b'8', 0xff])));
        assert_eq!(reader.text(&NUMBER), Some("3".to_owned()));
        assert_eq!(told(reader.finish(Some(()))), ["NUMBER is not UTF-8"]);
    }
}
