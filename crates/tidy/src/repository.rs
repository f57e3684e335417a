//! Applies every rule to the files in the repository, including files that `git add` would add.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::{documents, layers, licences, manifests, rooms, source, text};

/// Files above the aimed size, each with its allowed number of lines. They may shrink but not grow.
const LONG_FILES: &[(&str, usize)] = &[("crates/wire-gen/src/emit.rs", 700)];

/// Test code that needs `unsafe`.
const UNSAFE_IN_TESTS: &[&str] = &[
    // A counting allocator, which forwards to the system's allocator.
    "crates/broker/tests/memory.rs",
    "crates/wire/tests/memory.rs",
];

/// A file, by its path from the root.
struct File {
    path: String,
    text: String,
}

impl File {
    fn is(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, end)| end == extension)
    }
}

fn root() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate lies in crates/");
    crates.parent().expect("which lies in the root").to_owned()
}

/// All text files, sorted, without those in `.gitignore`. Only whole paths (`/target`) and names are supported there.
static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    let ignored = fs::read_to_string(root().join(".gitignore")).expect("there is a .gitignore");
    let ignored: BTreeSet<&str> = ignored.lines().chain([".git"]).collect();
    let mut files = Vec::new();
    walk(&root(), "", &ignored, &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(files.len() > 100, "these are not all files");
    files
});

fn walk(directory: &Path, prefix: &str, ignored: &BTreeSet<&str>, files: &mut Vec<File>) {
    for entry in fs::read_dir(directory).expect("a directory of the repository can be read") {
        let entry = entry.expect("a directory can be read to its end");
        let name = entry.file_name().into_string().expect("names are UTF-8");
        let path = format!("{prefix}{name}");
        if ignored.contains(name.as_str()) || ignored.contains(format!("/{path}").as_str()) {
            continue;
        }
        match entry.file_type().expect("the type is known") {
            kind if kind.is_dir() => walk(&entry.path(), &format!("{path}/"), ignored, files),
            // A file that is not text is a fixture, and the rules do not apply to it.
            kind if kind.is_file() => {
                files.extend(fs::read_to_string(entry.path()).ok().map(|text| File { path, text }));
            }
            _ => {}
        }
    }
}

fn of(extension: &str) -> impl Iterator<Item = &'static File> {
    FILES.iter().filter(move |file| file.is(extension))
}

fn file(path: &str) -> &'static str {
    let found = FILES.iter().find(|file| file.path == path);
    &found.unwrap_or_else(|| panic!("{path} is not there")).text
}

fn none(found: impl IntoIterator<Item = String>) {
    let found: Vec<String> = found.into_iter().collect();
    assert!(found.is_empty(), "{} violations:\n  {}", found.len(), found.join("\n  "));
}

#[test]
fn dependencies_between_crates_go_down() {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).current_dir(root());
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    let (crates, arrows) = layers::crates_and_arrows(&metadata);
    assert!(crates.len() > 5 && arrows.len() > 5, "the metadata was not understood");
    assert!(crates.iter().any(|name| name == layers::OF_TESTS), "the crate of tests has another name");
    none(layers::violations(&layers::layers(file("ARCHITECTURE.md")), &crates, &arrows));
}

/// The imports between the rooms of each crate, without the tests.
fn imports() -> BTreeMap<&'static str, rooms::Imports> {
    let mut files: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for file in of("rs").filter(|file| !source::is_test(&file.path) && !source::is_generated(&file.path)) {
        let Some((name, path)) = file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        let code = file.text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or("");
        files.entry(name).or_default().push((path, code));
    }
    files.into_iter().map(|(name, files)| (name, rooms::imports(files))).collect()
}

#[test]
fn rooms_of_a_crate_import_in_no_circle() {
    let imports = imports();
    assert!(imports.len() > 5 && imports["broker"].len() > 20, "the files were not understood");
    none(imports.iter().flat_map(|(name, imports)| {
        let circles = rooms::circles(imports).into_iter();
        circles.map(move |circle| format!("{name}: the rooms {circle:?} import from each other"))
    }));
}

#[test]
fn rooms_of_a_crate_import_from_rows_below() {
    let (architecture, imports) = (file("ARCHITECTURE.md"), imports());
    let tables = imports.iter().map(|(name, imports)| (name, rooms::rows(architecture, name), imports));
    let tables: Vec<_> = tables.filter(|(_, rows, _)| !rows.is_empty()).collect();
    assert!(!tables.is_empty(), "no crate has a table of its rooms");
    none(tables.into_iter().flat_map(|(name, rows, imports)| rooms::violations(name, &rows, imports)));
}

#[test]
fn dependencies_come_from_the_registry_under_licences_that_are_allowed() {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version", "1", "--locked", "--offline"]).current_dir(root());
    // Without this filter, the packages of other systems would have to be present.
    command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    assert!(metadata["packages"].as_array().is_some_and(|packages| packages.len() > 100));
    let deny: toml::Table = file("deny.toml").parse().expect("deny.toml is TOML");
    none(licences::violations(&metadata, &licences::allowed(&deny)));
}

#[test]
fn the_broker_knows_of_the_disk_only_the_trait() {
    let broker =
        of("rs").filter(|file| file.path.starts_with("crates/broker/src/") && !source::is_test(&file.path));
    let code = broker.map(|file| (file, file.text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or("")));
    none(code.flat_map(|(file, code)| source::names_beyond(&file.path, code, "disk", &["Disk"])));
}

#[test]
fn every_rust_file_says_what_it_is_for() {
    none(of("rs").filter_map(|file| source::without_opening(&file.path, &file.text)));
}

#[test]
fn files_do_not_grow_past_their_bounds() {
    none(of("rs").filter_map(|file| source::too_long(&file.path, &file.text, LONG_FILES)));
    let over = |path: &str| source::lines_without_tests(file(path)) > source::LINES_MAX;
    let shrunk = LONG_FILES.iter().filter(|(path, _)| !over(path));
    none(shrunk.map(|(path, _)| format!("{path} is short enough: take it off the list")));
}

#[test]
fn unsafe_code_stands_in_the_disk_crate() {
    none(of("rs").filter_map(|file| source::unsafe_outside(&file.path, &file.text, UNSAFE_IN_TESTS)));
    let needless = |path: &&&str| !source::has_word(&source::code_of(file(path)), "unsafe");
    none(UNSAFE_IN_TESTS.iter().filter(needless).map(|path| format!("{path} needs no exception")));
}

#[test]
fn nothing_is_left_unfinished() {
    none(FILES.iter().flat_map(|file| text::unfinished(&file.path, &file.text)));
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    none(FILES.iter().flat_map(|file| text::machine_paths(&file.path, &file.text)));
}

#[test]
fn no_file_names_a_host_that_is_not_listed() {
    none(FILES.iter().flat_map(|file| text::unknown_hosts(&file.path, &file.text)));
}

#[test]
fn dependencies_are_named_once_used_and_explained() {
    let root: toml::Table = file("Cargo.toml").parse().expect("the manifest is TOML");
    let (ours, others) = manifests::workspace_dependencies(&root);
    let mut found = manifests::unexplained(&others, file("ARCHITECTURE.md"));
    let mut asked_for = BTreeSet::new();
    let members =
        FILES.iter().filter(|file| file.path.starts_with("crates/") && file.path.ends_with("/Cargo.toml"));
    for member in members {
        let manifest = member.text.parse().expect("the manifest is TOML");
        let (names, wrong) = manifests::dependencies(&member.path, &manifest);
        found.extend(wrong);
        let directory = member.path.trim_end_matches("Cargo.toml");
        let code: String = of("rs")
            .filter(|file| file.path.starts_with(directory))
            .map(|file| source::code_of(&file.text))
            .collect();
        let all = names.normal.union(&names.dev).cloned().collect();
        found.extend(manifests::unused(&member.path, &all, &code));
        asked_for.extend(all);
    }
    let all = ours.union(&others).cloned().collect::<BTreeSet<_>>();
    found.extend(all.difference(&asked_for).map(|name| format!("Cargo.toml: no crate asks for {name}")));
    none(found);
}

#[test]
fn links_between_documents_resolve() {
    let exists = |path: &str| root().join(path).exists();
    none(of("md").flat_map(|file| documents::dead_links(&file.path, &file.text, exists)));
}

#[test]
fn tables_are_whole() {
    none(of("md").flat_map(|file| documents::torn_tables(&file.path, &file.text)));
}

#[test]
fn decisions_are_numbered_and_listed() {
    let prefix = "docs/decisions/";
    let records: Vec<_> = FILES
        .iter()
        .filter_map(|file| Some((file.path.strip_prefix(prefix)?.to_owned(), file.text.clone())))
        .collect();
    assert!(!records.is_empty(), "there are no decisions");
    none(documents::decisions(&records, file("ARCHITECTURE.md")));
}

#[test]
fn make_targets_that_documents_name_exist() {
    let targets = documents::make_targets(file("Makefile"));
    assert!(targets.contains("run") && targets.contains("test"), "the Makefile was not understood");
    none(of("md").flat_map(|file| documents::unknown_targets(&file.path, &file.text, &targets)));
}
