//! Java and Maven, as the machine has them.

use crate::error::During;
use crate::{Error, Result};
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Kafka 4's brokers are compiled for Java 17.
const MINIMUM: u32 = 17;

/// A Java that can run Kafka.
#[derive(Debug)]
pub(crate) struct Java {
    pub(crate) program: PathBuf,
    /// What it says about its version and build.
    pub(crate) build: String,
}

/// Finds a Java that can run Kafka: `JAVA_HOME`'s, else the one on `PATH`.
pub(crate) fn find_java() -> Result<Java> {
    let home = env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin/java")).filter(|java| java.is_file());
    let program = home.or_else(|| find_on_path("java")).ok_or(Error::JavaMissing { minimum: MINIMUM })?;
    let output = Command::new(&program).arg("-version").stdin(Stdio::null()).output().during("run", &program)?;
    // Without a Java, macOS has a `java` that only says where to get one.
    let build = String::from_utf8_lossy(&output.stderr).into_owned();
    let found = parse_version(&build).ok_or(Error::JavaMissing { minimum: MINIMUM })?;
    if found < MINIMUM {
        return Err(Error::JavaTooOld { java: program, found, minimum: MINIMUM });
    }
    Ok(Java { program, build })
}

/// Finds the `mvn` to fetch Kafka with: the one that `MAVEN` names, else the one on `PATH`.
pub(crate) fn find_maven() -> Result<PathBuf> {
    let named = env::var_os("MAVEN").filter(|value| !value.is_empty()).map(PathBuf::from);
    let named = named.filter(|maven| maven.is_file());
    named.or_else(|| find_on_path("mvn")).ok_or(Error::MavenMissing)
}

fn find_on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Reads the major version from `java -version`, which says `version "17.0.15"`, and before Java 9 `version "1.8.0_402"`.
fn parse_version(told: &str) -> Option<u32> {
    let (_, version) = told.split_once("version \"")?;
    let mut numbers = version.split(|letter: char| !letter.is_ascii_digit());
    match numbers.next()?.parse().ok()? {
        1 => numbers.next()?.parse().ok(),
        major => Some(major),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_version;

    #[test]
    fn the_major_version_is_read_from_what_java_says() {
        assert_eq!(parse_version("openjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime"), Some(17));
        assert_eq!(parse_version("java version \"1.8.0_402\""), Some(8));
        assert_eq!(parse_version("openjdk version \"25-ea\" 2025-09-16"), Some(25));
        assert_eq!(parse_version("The operation couldn't be completed. Unable to locate a Java Runtime."), None);
    }
}
