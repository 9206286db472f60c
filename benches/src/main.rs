//! Runs all workloads and writes `RESULTS.md` and `results.svg` into the current folder; `benches/run` starts it.
//!
//! `measure [--quick]`; `measure serve URL` is the HTTP service that the program starts for itself.

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

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => measure(Plan::FULL),
        ["--quick"] => measure(Plan::QUICK),
        ["serve", url] => workloads::serve(url),
        _ => {
            eprintln!("usage: benches/run [--quick]");
            std::process::exit(2);
        }
    }
}

fn measure(plan: Plan) {
    let load = machine::load();
    let mut bench = Bench::new(plan);
    let machine = machine::describe(&mut bench.server);
    bench.progress("client instructions, by callgrind");
    let instructions = instructions::measure(bench.server.url());
    bench.server.clear();
    workloads::run(&mut bench);
    let run = Run {
        machine,
        load,
        command: format!("benches/run{}", if plan.is_quick { " --quick" } else { "" }),
        rounds: plan.rounds,
        slice: plan.slice,
        elapsed: bench.elapsed(),
        instructions,
    };
    let text = report::markdown(&run, &bench.groups);
    fs::write("RESULTS.md", &text).expect("RESULTS.md can be written");
    fs::write("results.svg", plot::svg(&bench.groups)).expect("results.svg can be written");
    bench.progress("written: RESULTS.md, results.svg");
    print!("{text}");
}
