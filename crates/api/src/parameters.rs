//! The query of a request. A parameter that nobody knows is refused: a misspelt filter that is passed over shows a client
//! what it did not ask for.

use axum::extract::Query;
use axum::http::Uri;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use crate::fault::Fault;
use crate::members::uuid;

/// The most items of a page.
pub(crate) const LIMIT_MAX: u8 = 100;
/// The items of a page where nothing is said.
pub(crate) const LIMIT_DEFAULT: u8 = 20;

/// The parameters of a query, and what is wrong with them.
pub(crate) struct Parameters {
    given: Vec<(String, String)>,
    faults: Vec<Fault>,
}

impl Parameters {
    pub(crate) fn of(uri: &Uri) -> Self {
        let read = match uri.query() {
            None | Some("") => Ok(Vec::new()),
            Some(_) => Query::<Vec<(String, String)>>::try_from_uri(uri).map(|Query(given)| given),
        };
        match read {
            Ok(given) => Self { given, faults: Vec::new() },
            Err(_) => Self { given: Vec::new(), faults: vec![Fault::new("?", "is a query that can't be read")] },
        }
    }

    /// Every fault, parameters that nobody has taken included.
    pub(crate) fn finish(mut self) -> Vec<Fault> {
        self.faults
            .extend(self.given.iter().map(|(name, _)| Fault::of_parameter(name, "is not a parameter of this request")));
        self.faults
    }

    /// Takes a parameter that stands there at most once.
    fn take(&mut self, name: &'static str) -> Option<String> {
        let at = self.given.iter().position(|(given, _)| given == name)?;
        let (_, value) = self.given.swap_remove(at);
        if self.given.iter().any(|(given, _)| given == name) {
            self.given.retain(|(given, _)| given != name);
            self.faults.push(Fault::of_parameter(name, "appears more than once"));
            return None;
        }
        Some(value)
    }

    /// Takes and reads a parameter; notes a fault where it can't be read.
    pub(crate) fn read<T>(
        &mut self,
        name: &'static str,
        must_be: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let value = self.take(name)?;
        let read = read(&value);
        if read.is_none() {
            self.faults.push(Fault::of_parameter(name, must_be));
        }
        read
    }

    /// Notes that the cursor is of another list.
    pub(crate) fn refuse_cursor() -> Fault {
        Fault::of_parameter("cursor", CURSOR)
    }

    pub(crate) fn limit(&mut self) -> u8 {
        let limit = |text: &str| {
            let plain = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|limit| plain && (1..=LIMIT_MAX).contains(limit))
        };
        self.read("limit", "must be an integer from 1 to 100", limit).unwrap_or(LIMIT_DEFAULT)
    }

    /// A parameter that is `true` or `false`.
    pub(crate) fn flag(&mut self, name: &'static str) -> Option<bool> {
        self.read(name, "must be true or false", |text| text.parse().ok())
    }

    pub(crate) fn id(&mut self, name: &'static str) -> Option<Uuid> {
        self.read(name, "must be a UUID", uuid)
    }

    pub(crate) fn time(&mut self, name: &'static str) -> Option<OffsetDateTime> {
        self.read(name, "must be a time as in RFC 3339, such as 2026-01-31T12:00:00Z", |text| {
            OffsetDateTime::parse(text, &Rfc3339).ok()
        })
    }

    /// A cursor that begins with a letter, which tells what kind of place it names.
    pub(crate) fn cursor<T>(&mut self, read: impl FnOnce(char, &str) -> Option<T>) -> Option<T> {
        self.read("cursor", CURSOR, |text| {
            let mut rest = text.chars();
            read(rest.next()?, rest.as_str())
        })
    }
}

const CURSOR: &str = "must be the next_cursor of a page of this list";

#[cfg(test)]
mod tests {
    use super::*;

    fn of(query: &str) -> Parameters {
        Parameters::of(&format!("/v1/transfers?{query}").parse().unwrap())
    }

    #[test]
    fn parameters_are_read_once_and_strangers_are_refused() {
        let mut parameters = of("limit=7&created_from=2026-01-31T12%3A00%3A00Z");
        assert_eq!(parameters.limit(), 7);
        assert!(parameters.time("created_from").is_some());
        assert_eq!(parameters.finish(), []);

        let mut parameters = of("limit=7&limit=8&acount=1&cursor=x");
        parameters.limit();
        assert_eq!(parameters.cursor(|kind, _| (kind == 'a').then_some(())), None);
        let places: Vec<String> = parameters.finish().into_iter().map(|fault| fault.pointer).collect();
        assert_eq!(places, ["?limit", "?cursor", "?acount"]);
    }

    #[test]
    fn a_limit_is_a_plain_integer_from_1_to_100() {
        for refused in ["0", "101", "256", "-1", "+1", "1.0", "", "abc"] {
            let mut parameters = of(&format!("limit={refused}"));
            parameters.limit();
            assert_eq!(parameters.finish().len(), 1, "{refused}");
        }
        assert_eq!(of("").limit(), LIMIT_DEFAULT);
    }
}
