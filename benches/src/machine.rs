//! The machine, in one line.

use std::fs;

use crate::redis_server::RedisServer;

/// Processor, cores, memory, kernel and server.
pub fn describe(server: &mut RedisServer) -> String {
    let processor =
        value("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".into());
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    let memory = value("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split(' ').next()?.parse::<f64>().ok())
        .map_or(0.0, |kilobytes| kilobytes / 1024.0 / 1024.0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let redis = server.info("redis_version").unwrap_or_default();
    format!(
        "{processor}, {cores} cores, {memory:.0} GB, Linux {}, Redis {redis} on the same machine",
        kernel.trim()
    )
}

/// The load of the last minute: what else the machine had to do.
pub fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
}

fn value(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
