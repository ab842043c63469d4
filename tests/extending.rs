//! `docs/extending.md`: what it shows stands in its patch, and the patch applies to this tree, compiles and does what it says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::document::{read, root};

/// The fewest excerpts that a guide from the route to the event can have.
const EXCERPTS_MIN: usize = 12;

/// What the guide shows of the patch.
fn excerpts(guide: &str) -> Vec<&str> {
    guide.split("```diff\n").skip(1).map(|after| after.split_once("```").unwrap().0).collect()
}

#[test]
fn what_the_guide_shows_stands_in_the_patch() {
    let (guide, patch) = (read("docs/extending.md"), read("docs/extending/fee.patch"));
    let excerpts = excerpts(&guide);
    assert!(excerpts.len() >= EXCERPTS_MIN, "the guide shows {} excerpts", excerpts.len());
    for excerpt in excerpts {
        assert!(patch.contains(&format!("\n{excerpt}")), "this does not stand in docs/extending/fee.patch:\n{excerpt}");
    }
}

#[test]
fn the_guide_names_every_file_that_the_patch_touches() {
    let (guide, patch) = (read("docs/extending.md"), read("docs/extending/fee.patch"));
    let touched: Vec<&str> = patch.lines().filter_map(|line| line.strip_prefix("diff --git a/")).collect();
    assert!(!touched.is_empty());
    for paths in touched {
        let (path, _) = paths.split_once(" b/").unwrap();
        // The files of this folder are named after hashes.
        let named = if path.starts_with(".sqlx/") { "`.sqlx`".to_owned() } else { format!("`{path}`") };
        assert!(guide.contains(&named), "docs/extending.md does not tell of {path}");
    }
}

/// The files that git knows, copied to a folder that is the same in each run, so that what was compiled there is replaced.
fn copy_of_the_tree() -> PathBuf {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("extending");
    if copy.exists() {
        fs::remove_dir_all(&copy).unwrap();
    }
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let paths = String::from_utf8(listed.stdout).unwrap();
    for path in paths.split_terminator('\0') {
        let from = root().join(path);
        // What is deleted here and not yet committed is in the list, too.
        if from.exists() {
            let to = copy.join(path);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
        }
    }
    copy
}

fn run(folder: &Path, program: &str, arguments: &[&str]) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let status = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        // The dependencies are compiled there already; only what is in this workspace is compiled anew.
        .env("CARGO_TARGET_DIR", target)
        // git looks for no repository around the copy: it would take the patch's paths to be its own.
        .env("GIT_CEILING_DIRECTORIES", folder.parent().unwrap())
        .status();
    assert!(status.is_ok_and(|status| status.success()), "{program} {arguments:?} failed in {}", folder.display());
}

#[test]
#[ignore = "needs git and some minutes: it compiles the workspace a second time, with the patch"]
fn the_patch_applies_compiles_and_its_tests_pass() {
    let copy = copy_of_the_tree();
    run(&copy, "git", &["apply", "docs/extending/fee.patch"]);
    // `--workspace`, since a package alone has other features of its dependencies, which would be compiled a second time.
    let cargo = env!("CARGO");
    run(&copy, cargo, &["test", "--locked", "--workspace", "--lib", "--test", "decide"]);
    run(&copy, cargo, &["test", "--locked", "--workspace", "--test", "api", "fees::"]);
}
