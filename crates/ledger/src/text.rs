//! Free text that clients may attach: names, descriptions, metadata.

use std::collections::BTreeMap;

use serde::Serialize;
use thiserror::Error;

/// Why a text is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TextError {
    /// More characters than the field takes.
    #[error("is longer than {max} characters")]
    TooLong {
        /// The most characters (Unicode scalar values) that the field takes.
        max: usize,
    },
    /// Nothing, where a name is needed.
    #[error("is empty")]
    Empty,
    /// NUL and the other control characters but tab and newline: they break logs, terminals and PostgreSQL's text.
    #[error("holds a control character")]
    ControlCharacter,
    /// More members than metadata takes.
    #[error("has more than {max} members")]
    TooManyMembers {
        /// The most members.
        max: usize,
    },
}

fn check(text: &str, max: usize) -> Result<(), TextError> {
    if text.chars().any(|c| c.is_control() && c != '\t' && c != '\n') {
        return Err(TextError::ControlCharacter);
    }
    if text.chars().nth(max).is_some() {
        return Err(TextError::TooLong { max });
    }
    Ok(())
}

/// A text of at most `MAX` characters without control characters other than tab and newline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Text<const MAX: usize>(String);

impl<const MAX: usize> Text<MAX> {
    /// Checks the text and keeps it unchanged.
    ///
    /// # Errors
    /// [`TextError::ControlCharacter`] and [`TextError::TooLong`].
    pub fn new(text: String) -> Result<Self, TextError> {
        check(&text, MAX)?;
        Ok(Self(text))
    }

    /// A text that was accepted before, by whatever rules there were.
    pub(crate) const fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// The text as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An account's name, at most 200 characters.
pub type Name = Text<200>;
/// A transfer's description, at most 500 characters.
pub type Description = Text<500>;

/// Up to 20 string members, in the order of their names: names of 1 to 40 characters, values of at most 500.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Metadata(BTreeMap<String, String>);

impl Metadata {
    /// The most members.
    pub const MAX_MEMBERS: usize = 20;
    /// The most characters in a name.
    pub const MAX_NAME: usize = 40;
    /// The most characters in a value.
    pub const MAX_VALUE: usize = 500;

    /// Checks the members.
    ///
    /// # Errors
    /// Every fault with the name of its member, or with none where the whole is at fault.
    pub fn new(members: BTreeMap<String, String>) -> Result<Self, Vec<(Option<String>, TextError)>> {
        let mut faults = Vec::new();
        if members.len() > Self::MAX_MEMBERS {
            faults.push((None, TextError::TooManyMembers { max: Self::MAX_MEMBERS }));
        }
        for (name, value) in &members {
            let name_fault = if name.is_empty() { Some(TextError::Empty) } else { check(name, Self::MAX_NAME).err() };
            faults.extend(
                name_fault.or_else(|| check(value, Self::MAX_VALUE).err()).map(|fault| (Some(name.clone()), fault)),
            );
        }
        if faults.is_empty() { Ok(Self(members)) } else { Err(faults) }
    }

    /// Members that were accepted before, by whatever rules there were.
    pub(crate) fn from_stored(value: serde_json::Value) -> Result<Self, serde_json::Error> {
        serde_json::from_value(value).map(Self)
    }

    /// The members by name.
    pub fn members(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}
