//! The result as one page that needs nothing but itself: its plots are SVG, and it asks no one for anything.

use std::fmt::Write as _;

use crate::report::{Bar, Report, Second};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 34.0;
const TOP: f64 = 14.0;
const RIGHT: f64 = 12.0;
/// How many lines cross a plot.
const GRID: u32 = 4;
/// Colours that people with any kind of colour vision can tell apart (Okabe and Ito).
const COLOURS: [&str; 5] = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7"];

/// One line of a plot.
struct Line {
    name: &'static str,
    points: Vec<f64>,
}

/// The page.
pub(crate) fn page(report: &Report) -> String {
    let seconds = &report.timeline;
    let counted =
        |name, of: fn(&Second) -> u64| Line { name, points: seconds.iter().map(|second| of(second) as f64).collect() };
    let throughput = [
        counted("first", |second| second.answers.first),
        counted("replay", |second| second.answers.replay),
        counted("read", |second| second.answers.read),
        counted("shed", |second| second.answers.shed),
        counted("other", |second| second.answers.other),
    ];
    let throughput: Vec<Line> =
        throughput.into_iter().filter(|line| line.points.iter().any(|point| *point > 0.0)).collect();
    let percentiles: Vec<Line> = (0..5)
        .filter_map(|figure| {
            let name = seconds.first()?.latency.figures().get(figure)?.0;
            let points = seconds.iter().filter_map(|second| Some(second.latency.figures().get(figure)?.1)).collect();
            Some(Line { name, points })
        })
        .collect();
    format!(
        "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Load: {title}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:{WIDTH}px;padding:0 1rem;color:#1b1b1b}}
h2{{font-size:1rem;margin:1.6rem 0 .3rem}}svg{{width:100%;height:auto}}text{{font:12px system-ui,sans-serif;fill:#444}}
pre{{background:#f4f4f4;padding:1rem;overflow-x:auto}}</style></head><body>
<h1>Load</h1><pre>{text}</pre>
<h2>Answers a second</h2>{throughput}
<h2>Latency of accepted answers, in ms, second by second</h2>{percentiles}
<h2>How many accepted answers took how long</h2>{histogram}
</body></html>
",
        title = escape(&report.load.to_string()),
        text = escape(&report.text()),
        throughput = lines(&throughput, "s"),
        percentiles = lines(&percentiles, "s"),
        histogram = bars(&report.histogram),
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The next number of one digit and zeros, so that the grid has plain numbers.
fn ceiling(largest: f64) -> f64 {
    let unit = 10_f64.powf(largest.max(1e-3).log10().floor());
    (largest.max(1e-3) / unit).ceil() * unit
}

fn number(value: f64) -> String {
    if value >= 10.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn frame(top: f64) -> String {
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    for step in 0..=GRID {
        let share = f64::from(step) / f64::from(GRID);
        let y = at(share * top, top);
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            number(share * top)
        );
    }
    svg
}

/// The height of a value.
fn at(value: f64, top: f64) -> f64 {
    TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - value / top)
}

fn lines(lines: &[Line], unit: &str) -> String {
    let largest = lines.iter().flat_map(|line| line.points.iter().copied()).fold(0.0, f64::max);
    let top = ceiling(largest);
    let mut svg = frame(top);
    let count = lines.iter().map(|line| line.points.len()).max().unwrap_or(0);
    let step = (WIDTH - LEFT - RIGHT) / (count.max(2) - 1) as f64;
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<String> = line
            .points
            .iter()
            .enumerate()
            .map(|(second, value)| format!("{:.1},{:.1}", LEFT + step * second as f64, at(*value, top)))
            .collect();
        let _ = write!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" points=\"{}\"/><text x=\"{}\" y=\"{:.1}\" style=\"fill:{colour}\">{}</text>",
            points.join(" "),
            LEFT + 70.0 * index as f64,
            HEIGHT - 4.0,
            line.name
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{count} {unit}</text></svg>",
        WIDTH - RIGHT,
        HEIGHT - 4.0
    );
    svg
}

fn bars(bars: &[Bar]) -> String {
    let top = ceiling(bars.iter().map(|bar| bar.count).max().unwrap_or(0) as f64);
    let mut svg = frame(top);
    let width = (WIDTH - LEFT - RIGHT) / bars.len().max(1) as f64;
    // As many labels as have room.
    let labelled = (60.0 / width).ceil().max(1.0) as usize;
    for (index, bar) in bars.iter().enumerate() {
        let (x, y) = (LEFT + width * index as f64, at(bar.count as f64, top));
        let _ = write!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{} to {} ms: {}</title></rect>",
            (width - 1.0).max(0.5),
            HEIGHT - BOTTOM - y,
            COLOURS[0],
            number(bar.from_ms),
            number(bar.to_ms),
            bar.count
        );
        if index % labelled == 0 {
            let _ =
                write!(svg, "<text x=\"{x:.1}\" y=\"{:.1}\">{} ms</text>", HEIGHT - BOTTOM + 16.0, number(bar.from_ms));
        }
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_ends_at_a_plain_number() {
        for (largest, expected) in [(0.0, 0.001), (7.2, 8.0), (1_001.0, 2_000.0), (5_000.0, 5_000.0)] {
            assert!((ceiling(largest) - expected).abs() < 1e-9, "{largest}");
        }
    }
}
