//! The documents outside of `src/`: pictures that exist twice, and the places that ARCHITECTURE.md
//! names.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Expects that a link definition has the picture as a data URI.
fn assert_same(name: &str, definition: &str, picture: &str) {
    let start = format!("[{name}]: data:image/svg+xml,");
    let uri = definition.strip_prefix(&start).unwrap();
    let decoded = percent_encoding::percent_decode_str(uri).decode_utf8();
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(words(&decoded.unwrap()), words(picture));
}

#[test]
fn the_pictures_of_the_crate_docs_are_those_of_the_readme() {
    let (definition, picture) = (
        include_str!("../../docs/request.md"),
        include_str!("../../docs/request.svg"),
    );
    assert_same("request", definition, picture);
    let (definition, picture) = (
        include_str!("../../docs/results.md"),
        include_str!("../../docs/results.svg"),
    );
    assert_same("results", definition, picture);
}

/// All files of these folders.
fn files(folders: &[&str]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = folders
        .iter()
        .map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
        .collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files
}

/// The texts in backticks, each with the text before it.
fn quoted(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut parts = text.split('`');
    std::iter::from_fn(move || Some((parts.next()?, parts.next()?)))
}

/// Whether the name is in the text as a whole word.
fn has_word(text: &str, name: &str) -> bool {
    text.split(|it: char| !it.is_alphanumeric() && it != '_')
        .any(|word| word == name)
}

/// A place is written as "`file`: `name`, `name`" on the page.
#[test]
fn the_places_that_the_architecture_names_exist() {
    let files = files(&["src", "tests", "docs"]);
    let page = include_str!("../../ARCHITECTURE.md");
    let mut wrong = Vec::new();
    let (mut checked, mut texts) = (0, Vec::new());
    for (before, quote) in quoted(page) {
        let is_file = [".rs", ".lua", ".py", ".js", ".md", ".svg", ".json"]
            .iter()
            .any(|ending| quote.ends_with(ending) && !quote.contains(['*', ' ', '{']));
        let is_name = quote
            .chars()
            .all(|it| it.is_alphanumeric() || it == '_' || it == ':');
        if is_file {
            texts = files
                .iter()
                .filter(|path| path.ends_with(quote))
                .map(|path| fs::read_to_string(path).unwrap())
                .collect();
            let is_at_top = Path::new(env!("CARGO_MANIFEST_DIR")).join(quote).exists();
            if texts.is_empty() && !is_at_top {
                wrong.push(format!("{quote}: no such file"));
            }
            checked += 1;
        } else if is_name
            && matches!(
                before.trim_matches('*').trim(),
                ":" | "," | "and" | ", then"
            )
        {
            let name = quote.rsplit("::").next().unwrap_or(quote);
            if !texts.is_empty() && !texts.iter().any(|text| has_word(text, name)) {
                wrong.push(format!("{quote}: not in the file that is named before it"));
            }
            checked += 1;
        } else {
            texts.clear();
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked > 300, "only {checked} places were found");
}
