//! Lists the built dashboard (`ui/dist`) for `src/dashboard.rs` to embed: every file with its compressed forms.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/dist");
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut files = Vec::new();
    collect(&dist, &mut files);
    files.sort();
    let mut table = String::from("&[\n");
    for file in files.iter().filter(|file| !is_compressed(file)) {
        let name = file.strip_prefix(&dist).expect("below the folder").to_str().expect("our own names are UTF-8");
        let compressed = |ending: &str| {
            let path = PathBuf::from(format!("{}.{ending}", file.display()));
            if path.exists() { format!("Some(include_bytes!(\"{}\"))", path.display()) } else { "None".to_owned() }
        };
        let (gzip, brotli) = (compressed("gz"), compressed("br"));
        let file = file.display();
        writeln!(table, "File {{ path: \"{name}\", body: include_bytes!(\"{file}\"), gzip: {gzip}, brotli: {brotli} }},")
            .expect("a String takes everything");
    }
    table.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    fs::write(out.join("dashboard_files.rs"), table).expect("the build folder can be written");
}

fn is_compressed(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == "gz" || ending == "br")
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}; run `cargo xtask ui`", folder.display()));
    for entry in entries {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            println!("cargo::rerun-if-changed={}", path.display());
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}
