//! `docs/results.svg`: two charts of lines and two of bars. The colours of text and axes follow the reader's light or dark scheme.

use std::fmt::Write;

use crate::{
    contest::{Group, Row},
    meter::Sample,
    workloads,
};

/// Distinct on white and on black.
const COLOURS: [&str; 6] = [
    "#8a8f98", "#d9822b", "#b0529b", "#3a9d8f", "#2f7ed8", "#d64545",
];

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 800.0;
/// The area of a chart, without its title and labels.
const CHART: (f64, f64) = (350.0, 190.0);

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-weight:600;font-size:13px}\
    .axis{stroke:#8c959f;stroke-width:1}.grid{stroke:#8c959f;stroke-opacity:.25}\
    @media(prefers-color-scheme:dark){text{fill:#d0d7de}}";

/// The picture as a data URI, for a link in Markdown.
pub fn data_uri(svg: &str) -> String {
    let mut uri = "data:image/svg+xml,".to_owned();
    for byte in svg.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~:/=;,".contains(&byte) {
            uri.push(byte.into());
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri
}

/// The picture of a run.
pub fn svg(groups: &[Group]) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"Locks a second, latency, client CPU and requests a second\"><style>{STYLE}</style>"
    );
    let of = |title: &str| groups.iter().find(|group| group.title == title);
    let spread: Vec<(usize, &Group)> = [1, 2, 4, 8, 32, 128, 512]
        .into_iter()
        .filter_map(|tasks| Some((tasks, of(&workloads::spread_title(tasks))?)))
        .collect();
    if let Some((_, first)) = spread.first() {
        let names: Vec<&str> = first.rows.iter().map(|row| row.name.as_str()).collect();
        legend(&mut out, &names);
        lines(
            &mut out,
            (70.0, 90.0),
            "Locks a second, by number of tasks",
            &spread,
            |s| s.rate,
        );
        lines(
            &mut out,
            (520.0, 90.0),
            "p99 of the lock, µs, by number of tasks (logarithmic)",
            &spread,
            |s| s.p99,
        );
    }
    if let Some(group) = of(&workloads::spread_title(32)) {
        bars(
            &mut out,
            (70.0, 400.0),
            "Client CPU per lock at 32 tasks, µs",
            group,
            |n| COLOURS[n % COLOURS.len()],
            |s| s.client_cpu,
        );
    }
    if let Some(group) = of(&workloads::http_title(32)) {
        bars(
            &mut out,
            (520.0, 400.0),
            "HTTP requests a second, 32 connections",
            group,
            // Other contestants than those of the legend.
            |_| COLOURS[0],
            |s| s.rate,
        );
    }
    out.push_str("</svg>\n");
    out
}

fn legend(out: &mut String, names: &[&str]) {
    for (n, name) in names.iter().enumerate() {
        let (x, y) = (70.0 + 280.0 * (n % 3) as f64, 20.0 + 20.0 * (n / 3) as f64);
        let colour = COLOURS[n % COLOURS.len()];
        draw(
            out,
            format_args!(
                "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{colour}\"/>",
                y - 10.0
            ),
        );
        draw(
            out,
            format_args!("<text x=\"{}\" y=\"{y}\">{name}</text>", x + 18.0),
        );
    }
}

/// One line for each contestant. The vertical axis is logarithmic for latencies, which differ by orders of magnitude.
fn lines(
    out: &mut String,
    (left, top): (f64, f64),
    title: &str,
    groups: &[(usize, &Group)],
    column: fn(&Sample) -> f64,
) {
    let is_logarithmic = title.contains("logarithmic");
    let value = |row: &Row| row.column(column).median;
    let all = groups
        .iter()
        .flat_map(|(_, group)| group.rows.iter().map(value));
    let (low, high) = all.fold((f64::MAX, 0f64), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    let (bottom, high) = match is_logarithmic {
        true => (
            10f64.powf(low.log10().floor()),
            10f64.powf(high.log10().ceil()),
        ),
        false => (0.0, nice(high)),
    };
    let (width, height) = CHART;
    let y = |value: f64| match is_logarithmic {
        true => top + height * (1.0 - (value / bottom).log10() / (high / bottom).log10()),
        false => top + height * (1.0 - value / high),
    };
    let x = |n: usize| left + width * n as f64 / (groups.len().max(2) - 1) as f64;
    heading(out, (left, top), title);
    let ticks: Vec<f64> = match is_logarithmic {
        true => (0..=(high / bottom).log10().round() as i32)
            .map(|n| bottom * 10f64.powi(n))
            .collect(),
        false => (0..=4).map(|n| high * f64::from(n) / 4.0).collect(),
    };
    for tick in ticks {
        let y = y(tick);
        draw(
            out,
            format_args!(
                "<line class=\"grid\" x1=\"{left}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
                left + width
            ),
        );
        draw(
            out,
            format_args!(
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                y + 4.0,
                short(tick)
            ),
        );
    }
    for (n, (tasks, _)) in groups.iter().enumerate() {
        draw(
            out,
            format_args!(
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{tasks}</text>",
                x(n),
                top + height + 18.0
            ),
        );
    }
    for contestant in 0..groups[0].1.rows.len() {
        let colour = COLOURS[contestant % COLOURS.len()];
        let points: Vec<String> = groups
            .iter()
            .enumerate()
            .filter_map(|(n, (_, group))| {
                Some(format!(
                    "{:.1},{:.1}",
                    x(n),
                    y(value(group.rows.get(contestant)?))
                ))
            })
            .collect();
        draw(
            out,
            format_args!(
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
                points.join(" ")
            ),
        );
    }
}

/// One horizontal bar for each contestant.
fn bars(
    out: &mut String,
    (left, top): (f64, f64),
    title: &str,
    group: &Group,
    colour: fn(usize) -> &'static str,
    column: fn(&Sample) -> f64,
) {
    heading(out, (left, top), title);
    let value = |row: &Row| row.column(column).median;
    let high = group.rows.iter().map(value).fold(0.0, f64::max);
    let step = 42.0;
    for (n, row) in group.rows.iter().enumerate() {
        let (y, value) = (top + step * n as f64, value(row));
        let colour = colour(n);
        let width = (CHART.0 - 60.0) * value / high;
        draw(
            out,
            format_args!("<text x=\"{left}\" y=\"{}\">{}</text>", y + 12.0, row.name),
        );
        draw(
            out,
            format_args!(
                "<rect x=\"{left}\" y=\"{}\" width=\"{width:.1}\" height=\"14\" rx=\"2\" fill=\"{colour}\"/>",
                y + 17.0
            ),
        );
        draw(
            out,
            format_args!(
                "<text x=\"{:.1}\" y=\"{}\">{}</text>",
                left + width + 6.0,
                y + 29.0,
                short(value)
            ),
        );
    }
}

fn heading(out: &mut String, (left, top): (f64, f64), title: &str) {
    draw(
        out,
        format_args!(
            "<text class=\"title\" x=\"{left}\" y=\"{}\">{title}</text>",
            top - 14.0
        ),
    );
}

fn draw(out: &mut String, element: std::fmt::Arguments<'_>) {
    out.write_fmt(element).expect("a string takes all text");
    out.push('\n');
}

/// The next 1, 2, 4 or 8 times a power of ten.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 8.0, 10.0];
    let step = steps.into_iter().find(|step| step * power >= value);
    step.unwrap_or(10.0) * power
}

fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.0} M", value / 1e6),
        value if value >= 1e4 => format!("{:.0} k", value / 1e3),
        value if value >= 1e3 => format!("{:.1} k", value / 1e3),
        value if value >= 100.0 || value == value.trunc() => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}
