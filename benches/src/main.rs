//! Runs all workloads and writes `RESULTS.md` into the current folder, and the plot into `../docs`; `benches/run` starts it.
//!
//! `measure [--quick] [FILTER]`, where a run with a filter writes no file; `measure serve URL` is the HTTP service that the program starts for itself.

use std::{env, fs};

use tower_distributed_lock_benches::{
    allocations::Counting,
    bench::{Bench, Plan},
    instructions, machine, plot,
    report::{self, Run},
    workloads,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const INSTRUCTIONS: &str = "Client instructions, by callgrind";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", url] => workloads::serve(url),
        [] => write(&measure(Plan::FULL, "")),
        ["--quick"] => write(&measure(Plan::QUICK, "")),
        ["--quick", filter] => drop(measure(Plan::QUICK, filter)),
        [filter] if !filter.starts_with('-') => drop(measure(Plan::FULL, filter)),
        _ => {
            eprintln!("usage: benches/run [--quick] [words of a table's title]");
            std::process::exit(2);
        }
    }
}

struct Results {
    markdown: String,
    svg: String,
}

/// Measures the groups whose titles contain `filter`, and prints the tables.
fn measure(plan: Plan, filter: &str) -> Results {
    let load = machine::load();
    let mut bench = Bench::new(plan, filter);
    let machine = machine::describe(&mut bench.server);
    let instructions = bench.is_wanted(INSTRUCTIONS).then(|| {
        bench.progress(INSTRUCTIONS);
        instructions::measure(bench.server.url())
    });
    bench.server.clear();
    workloads::run(&mut bench);
    let run = Run {
        machine,
        load,
        command: format!("benches/run{}", if plan.is_quick { " --quick" } else { "" }),
        rounds: plan.rounds,
        slice: plan.slice,
        elapsed: bench.elapsed(),
        instructions: instructions.flatten(),
        figures: std::mem::take(&mut bench.figures),
    };
    let markdown = report::markdown(&run, &bench.groups);
    print!("{markdown}");
    Results {
        markdown,
        svg: plot::svg(&bench.groups),
    }
}

fn write(results: &Results) {
    // The README shows the picture. The crate's documentation shows the README, and needs the picture as a data URI.
    let definition = format!("[results]: {}\n", plot::data_uri(&results.svg));
    let files = [
        ("RESULTS.md", &results.markdown),
        ("../docs/results.svg", &results.svg),
        ("../docs/results.md", &definition),
    ];
    for (path, content) in files {
        fs::write(path, content).unwrap_or_else(|error| panic!("cannot write {path}: {error}"));
        eprintln!("written: {path}");
    }
}
