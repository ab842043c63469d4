//! Pages whose tables are made from the code.

use std::path::PathBuf;

/// The repository.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// A file of the repository as text.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Fails, with the text that has to stand there, where a page's table is not this one. It stands between the marks
/// `<!-- NAME -->` and `<!-- end -->`.
pub fn assert_table(path: &str, name: &str, head: &[&str], rows: impl IntoIterator<Item = String>) {
    let rule = "---|".repeat(head.len());
    let head = format!("| {} |\n|{rule}\n", head.join(" | "));
    let expected = rows.into_iter().fold(head, |table, row| table + &row + "\n");
    let page = read(path);
    let begins = format!("<!-- {name} -->\n");
    let found = page.split_once(&begins).and_then(|(_, rest)| rest.split_once("<!-- end -->"));
    let found = found.unwrap_or_else(|| panic!("{path} has no table {name}")).0;
    assert!(found == expected, "in {path}, {name} is:\n{expected}");
}
