//! `RESULTS.md`.

use std::fmt::Write;

use crate::{
    bars::{Bar, Limit, bars},
    contest::{Group, Row, Spread},
    instructions::Instructions,
    meter::Sample,
};

/// The facts about a run.
pub struct Run {
    pub machine: String,
    pub load: String,
    pub command: String,
    pub rounds: usize,
    pub slice: std::time::Duration,
    pub elapsed: std::time::Duration,
    pub instructions: Option<Instructions>,
    pub figures: Vec<Bar>,
}

/// The whole report in Markdown.
pub fn markdown(run: &Run, groups: &[Group]) -> String {
    let mut text = String::new();
    head(&mut text, run).expect("a string takes all text");
    let mut bars = bars(groups, run.instructions);
    bars.extend_from_slice(&run.figures);
    bars_table(&mut text, &bars).expect("a string takes all text");
    for group in groups {
        table(&mut text, group).expect("a string takes all text");
    }
    text
}

fn head(text: &mut String, run: &Run) -> std::fmt::Result {
    writeln!(
        text,
        "# Results\n\nWritten by `{}`; the next run overwrites this file.\n",
        run.command
    )?;
    writeln!(
        text,
        "- Machine: {}. Load of the minute before the run: {}.",
        run.machine, run.load
    )?;
    writeln!(
        text,
        "- {} rounds of {} ms or a small multiple for each contestant, interleaved; {} s in all. Figures are medians of the rounds, \
         in parentheses the quartiles. Ratios (×) are to the first row, round by round, and of these the median: on a machine that has other \
         work they count, not the figures.",
        run.rounds,
        run.slice.as_millis(),
        run.elapsed.as_secs()
    )?;
    writeln!(
        text,
        "- Latency is that of the lock. With the guard dropped, the next lock carries the cost of the last release; compare latencies with the \
         release awaited. Commands, CPU and allocations are per operation: a lock and its release, unless the table says otherwise. Commands \
         and allocations were counted in a slice of their own.\n"
    )?;
    if let Some(Instructions { hand_written, ours }) = run.instructions {
        writeln!(
            text,
            "Client instructions per lock, by callgrind, 32 tasks on one thread: hand-written {hand_written:.0}, this crate with the guard \
             dropped {ours:.0} ({:.2} ×).\n",
            ours / hand_written
        )?;
    }
    writeln!(
        text,
        "![Locks a second, latency, CPU and requests a second](../docs/results.svg)\n"
    )
}

fn bars_table(text: &mut String, bars: &[Bar]) -> std::fmt::Result {
    writeln!(
        text,
        "## Bars\n\n| 32 tasks, warm, unless it says otherwise | bar | figure | met |\n|---|---|---|---|"
    )?;
    for bar in bars {
        let limit = match bar.limit {
            Limit::AtMost(limit) => format!("≤ {limit}"),
            Limit::AtLeast(limit) => format!("≥ {limit}"),
        };
        let Spread { low, median, high } = bar.figure;
        let met = if bar.is_met() { "yes" } else { "**no**" };
        writeln!(
            text,
            "| {} | {limit} | {median:.2} ({low:.2}–{high:.2}) | {met} |",
            bar.what
        )?;
    }
    writeln!(text)
}

fn table(text: &mut String, group: &Group) -> std::fmt::Result {
    writeln!(text, "## {}\n\n{}\n", group.title, group.about)?;
    let has_notes = group.rows.iter().any(|row| !row.note.is_empty());
    let (head, line) = if has_notes { (" |", "---|") } else { ("", "") };
    writeln!(
        text,
        "| | per second | × | p50, µs | p99, µs | × p99 | commands | client CPU, µs | × | server CPU, µs | × | allocations |{head}\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|{line}"
    )?;
    for row in &group.rows {
        let note = if has_notes {
            format!(" {} |", row.note)
        } else {
            String::new()
        };
        writeln!(text, "| {} |{}{note}", row.name, cells(row, &group.rows[0]))?;
    }
    writeln!(text)
}

fn cells(row: &Row, base: &Row) -> String {
    let columns: [fn(&Sample) -> f64; 5] = [
        |s| s.rate,
        |s| s.p50,
        |s| s.p99,
        |s| s.client_cpu,
        |s| s.server_cpu,
    ];
    let [rate, p50, p99, client, server] = columns;
    let own = |column| spread(row.column(column));
    let ratio = |column| number(row.ratio(base, column).median);
    [
        own(rate),
        ratio(rate),
        own(p50),
        own(p99),
        ratio(p99),
        number(row.counts.commands),
        own(client),
        ratio(client),
        own(server),
        ratio(server),
        number(row.counts.allocations),
    ]
    .map(|cell| format!(" {cell} |"))
    .concat()
}

fn spread(spread: Spread) -> String {
    let Spread { low, median, high } = spread;
    if median.is_nan() {
        return "–".into();
    }
    format!("{} ({}–{})", number(median), number(low), number(high))
}

/// Three significant digits, thousands with commas.
fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "–".into(),
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value if value < 1000.0 => format!("{value:.0}"),
        value => {
            let digits = 10f64.powf(value.log10().floor() - 2.0);
            let rounded = ((value / digits).round() * digits) as u64;
            let mut text = rounded.to_string();
            let mut at = text.len();
            while at > 3 {
                at -= 3;
                text.insert(at, ',');
            }
            text
        }
    }
}
