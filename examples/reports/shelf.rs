//! The folder of the reports. Each chapter is a file, so a report is never written in one step.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};

use serde::Serialize;

const CHAPTERS: usize = 3;

/// A folder with the chapters of all reports, and a journal.
#[derive(Clone)]
pub(crate) struct Shelf {
    folder: PathBuf,
}

/// A part of a report, with the token of the turn that has written it.
#[derive(Serialize)]
pub(crate) struct Chapter {
    token: u64,
    text: String,
}

impl Shelf {
    pub(crate) fn open(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// Writes one chapter after another, with a pause after each.
    pub(crate) async fn write(
        &self,
        report: u64,
        token: u64,
        text: &str,
        pause: Duration,
    ) -> io::Result<()> {
        let _visit = self.visit("write")?;
        for chapter in 0..CHAPTERS {
            fs::write(self.file(report, chapter), format!("{token} {text}"))?;
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Reads one chapter after another, with a pause after each. A report that was never written
    /// has no chapters.
    pub(crate) async fn read(&self, report: u64, pause: Duration) -> io::Result<Vec<Chapter>> {
        let _visit = self.visit("read")?;
        let mut chapters = Vec::new();
        for chapter in 0..CHAPTERS {
            match fs::read_to_string(self.file(report, chapter)) {
                Ok(text) => chapters.push(Chapter::parse(&text)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(pause).await;
        }
        Ok(chapters)
    }

    /// Notes in the journal that work of a kind begins, and notes its end when the result is
    /// dropped.
    pub(crate) fn visit(&self, kind: &'static str) -> io::Result<Visit> {
        // Appended lines of several processes keep their order.
        let journal = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join("journal"))?;
        let mut visit = Visit { journal, kind };
        visit.note("begin")?;
        Ok(visit)
    }

    fn file(&self, report: u64, chapter: usize) -> PathBuf {
        self.folder.join(format!("report-{report}-{chapter}"))
    }
}

impl Chapter {
    fn parse(text: &str) -> io::Result<Self> {
        let (token, text) = text.split_once(' ').unwrap_or((text, ""));
        let token = token.parse().map_err(io::Error::other)?;
        let text = text.to_owned();
        Ok(Self { token, text })
    }
}

/// Work that has begun and not ended.
pub(crate) struct Visit {
    journal: File,
    kind: &'static str,
}

impl Visit {
    fn note(&mut self, what: &str) -> io::Result<()> {
        let line = format!("{what} {} {}\n", self.kind, std::process::id());
        self.journal.write_all(line.as_bytes())
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let _ = self.note("end");
    }
}
