//! What is wrong with a request, one fault for each place.

use std::borrow::Cow;

use serde::Serialize;

/// The most faults that one answer names, so that a body made of faults does not grow on its way back.
pub(crate) const FAULTS_MAX: usize = 100;

/// The most characters of a client's own member name that an answer repeats.
const NAME_SHOWN: usize = 100;

/// One fault of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Fault {
    /// Where: a JSON pointer (RFC 6901) into the body, or `?name` for a query parameter.
    pub(crate) pointer: String,
    /// What is wrong there, as the rest of a sentence that begins with the place.
    pub(crate) detail: Cow<'static, str>,
}

impl Fault {
    /// A fault at a place that is written already.
    pub(crate) fn new(pointer: impl Into<String>, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }

    /// A fault of a member of the body's object.
    pub(crate) fn of_member(name: &str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(pointer(&[name]), detail)
    }

    /// A fault of a query parameter.
    pub(crate) fn of_parameter(name: &str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(format!("?{}", shown(name)), detail)
    }
}

fn shown(name: &str) -> String {
    name.chars().take(NAME_SHOWN).collect()
}

/// The JSON pointer made of the names, outermost first (RFC 6901, section 3).
pub(crate) fn pointer(names: &[&str]) -> String {
    names.iter().fold(String::new(), |mut pointer, name| {
        pointer.push('/');
        pointer.push_str(&shown(name).replace('~', "~0").replace('/', "~1"));
        pointer
    })
}
