//! What is printed: a line for each clause.

use std::io::Write;

/// One clause, tried.
pub(crate) struct Row {
    pub(crate) clause: &'static str,
    pub(crate) sent: String,
    pub(crate) expected: String,
    pub(crate) seen: String,
    /// None where this server, or what is known of it, gives no occasion to try.
    pub(crate) kept: Option<bool>,
}

/// Rows under headings.
#[derive(Default)]
pub(crate) struct Table {
    chapters: Vec<(&'static str, Vec<Row>)>,
}

impl Table {
    pub(crate) fn begin(&mut self, chapter: &'static str) {
        self.chapters.push((chapter, Vec::new()));
    }

    pub(crate) fn add(&mut self, row: Row) {
        let (_, rows) = self.chapters.last_mut().expect("a chapter begins before its rows");
        rows.push(row);
    }

    /// How many clauses were kept, broken, and not tried.
    pub(crate) fn counts(&self) -> [usize; 3] {
        let rows = || self.chapters.iter().flat_map(|(_, rows)| rows);
        [Some(true), Some(false), None].map(|kept| rows().filter(|row| row.kept == kept).count())
    }

    /// Prints the whole, whether or not the test runner shows what tests print.
    pub(crate) fn print(&self) {
        let mut text = String::new();
        for (chapter, rows) in &self.chapters {
            text += &format!("\n## {chapter}\n\n");
            let head = ["clause", "sent", "expected", "seen", "ok"].map(str::to_owned);
            let lines: Vec<[String; 5]> = rows.iter().map(cells).collect();
            let widths = [0, 1, 2, 3, 4].map(|column| {
                let cells = std::iter::once(&head).chain(&lines).map(|line| line[column].chars().count());
                cells.max().unwrap_or_default()
            });
            let rule = widths.map(|width| "-".repeat(width));
            for line in [&head, &rule].into_iter().chain(&lines) {
                let padded = line.iter().zip(widths).map(|(cell, width)| format!(" {cell:width$} "));
                text += &format!("|{}|\n", padded.collect::<Vec<_>>().join("|"));
            }
        }
        let [kept, broken, untried] = self.counts();
        text += &format!("\n{kept} clauses kept, {broken} broken, {untried} not tried\n");
        std::io::stdout().lock().write_all(text.as_bytes()).unwrap();
    }
}

fn cells(row: &Row) -> [String; 5] {
    let verdict = match row.kept {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "–",
    };
    // A bar would end the cell.
    [row.clause, &row.sent, &row.expected, &row.seen, verdict].map(|cell| cell.replace('|', "¦"))
}
