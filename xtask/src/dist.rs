//! `cargo xtask dist`: what a release consists of, in `target/dist`: the binary without debug info, its debug info, a
//! Debian package, the software bill of materials, the licences, and the SHA-256 of each.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::{cargo, root, run};

/// Builds with link-time optimisation unless a binary is given, which a quick look at the packaging does.
pub(crate) fn make(binary: Option<&Path>) -> anyhow::Result<()> {
    let target = root().join("target/dist-files");
    let _ = fs::remove_dir_all(&target);
    fs::create_dir_all(&target)?;
    let built = if let Some(binary) = binary {
        binary.to_owned()
    } else {
        run(&mut cargo(&["build", "--profile", "dist", "--locked", "--package", "posthaste"]))?;
        root().join("target/dist/posthaste")
    };
    let (program, debug) = (target.join("posthaste"), target.join("posthaste.debug"));
    run(Command::new("objcopy").arg("--only-keep-debug").arg(&built).arg(&debug))?;
    run(Command::new("objcopy")
        .arg("--strip-all")
        .arg(format!("--add-gnu-debuglink={}", debug.display()))
        .arg(&built)
        .arg(&program))?;
    let packages = packages()?;
    fs::write(target.join("posthaste.cdx.json"), bill_of_materials(&packages))?;
    fs::write(target.join("LICENSES.txt"), licences(&packages))?;
    let package = debian_package(&target, &program)?;
    let mut sums = String::new();
    let mut names: Vec<_> = fs::read_dir(&target)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>()?;
    names.sort();
    for name in names {
        let output = Command::new("sha256sum").arg(&name).current_dir(&target).output().context("sha256sum")?;
        sums += &String::from_utf8(output.stdout)?;
    }
    fs::write(target.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    println!("posthaste is {:.1} MB; {package} is ready in {}", fs::metadata(&program)?.len() as f64 / 1e6, target.display());
    Ok(())
}

/// A package that is compiled into the binary.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Package {
    name: String,
    version: String,
    licence: String,
}

/// Everything in the binary on this platform, without what is for tests.
fn packages() -> anyhow::Result<Vec<Package>> {
    let arguments =
        ["tree", "--package", "posthaste", "--edges", "normal,build", "--locked", "--prefix", "none", "--format", "{p}|{l}"];
    let output = cargo(&arguments).output().context("cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut found = BTreeMap::new();
    for line in String::from_utf8(output.stdout)?.lines().filter(|line| !line.is_empty()) {
        let package = read(line).with_context(|| format!("cargo tree said {line}"))?;
        found.insert((package.name.clone(), package.version.clone()), package);
    }
    Ok(found.into_values().collect())
}

/// `serde v1.0.0 (proc-macro)|MIT OR Apache-2.0 (*)`.
fn read(line: &str) -> Option<Package> {
    let (package, licence) = line.trim_end_matches(" (*)").split_once('|')?;
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    Some(Package { name: name.to_owned(), version: version.to_owned(), licence: licence.replace('/', " OR ") })
}

/// `CycloneDX` 1.5 as JSON. Names, versions and SPDX expressions need no escaping beyond quotes.
fn bill_of_materials(packages: &[Package]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let component = |package: &Package| {
        let Package { name, version, licence } = package;
        let purl = format!("pkg:cargo/{name}@{version}");
        format!(
            "    {{\"type\": \"library\", \"bom-ref\": {}, \"name\": {}, \"version\": {}, \"purl\": {}, \"licenses\": [{{\"expression\": {}}}]}}",
            quoted(&purl),
            quoted(name),
            quoted(version),
            quoted(&purl),
            quoted(licence)
        )
    };
    let (ours, others): (Vec<&Package>, Vec<&Package>) = packages.iter().partition(|package| package.name == "posthaste");
    let version = ours.first().map_or("", |package| package.version.as_str());
    let components: Vec<String> = others.into_iter().map(component).collect();
    format!(
        "{{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,\n  \"metadata\": {{\"component\": \
         {{\"type\": \"application\", \"name\": \"posthaste\", \"version\": {}}}}},\n  \"components\": [\n{}\n  ]\n}}\n",
        quoted(version),
        components.join(",\n")
    )
}

fn licences(packages: &[Package]) -> String {
    let lines = packages.iter().map(|package| format!("{} {}: {}\n", package.name, package.version, package.licence));
    let head = "What the binary is made of, and under which licences (SPDX). The texts are in the packages themselves.\n\n";
    std::iter::once(head.to_owned()).chain(lines).collect()
}

/// Made with `dpkg-deb` from what is in `deploy/`.
fn debian_package(target: &Path, program: &Path) -> anyhow::Result<String> {
    let tree = target.join("deb");
    let place =
        |from: &Path, to: &str, mode: &str| run(Command::new("install").args(["-D", "-m", mode]).arg(from).arg(tree.join(to)));
    let top = root();
    place(program, "usr/bin/posthaste", "0755")?;
    place(&top.join("deploy/systemd/posthaste.service"), "usr/lib/systemd/system/posthaste.service", "0644")?;
    for name in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md"] {
        place(&top.join(name), &format!("usr/share/doc/posthaste/{name}"), "0644")?;
    }
    place(&target.join("LICENSES.txt"), "usr/share/doc/posthaste/LICENSES.txt", "0644")?;
    place(&top.join("LICENSE-MIT"), "usr/share/doc/posthaste/copyright", "0644")?;
    for shell in [
        ("bash", "usr/share/bash-completion/completions/posthaste"),
        ("fish", "usr/share/fish/vendor_completions.d/posthaste.fish"),
    ] {
        let output = Command::new(program).args(["completions", shell.0]).output().context("completions")?;
        let path = target.join("completion");
        fs::write(&path, output.stdout)?;
        place(&path, shell.1, "0644")?;
        fs::remove_file(path)?;
    }
    let version = env!("CARGO_PKG_VERSION");
    let architecture = String::from_utf8(Command::new("dpkg").arg("--print-architecture").output().context("dpkg")?.stdout)?;
    let architecture = architecture.trim();
    let control = fs::read_to_string(top.join("deploy/debian/control"))?;
    let control = control.replace("@VERSION@", version).replace("@ARCHITECTURE@", architecture);
    fs::create_dir_all(tree.join("DEBIAN"))?;
    fs::write(tree.join("DEBIAN/control"), control)?;
    let name = format!("posthaste_{version}_{architecture}.deb");
    run(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&tree).arg(target.join(&name)))?;
    fs::remove_dir_all(tree)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_read_from_a_line_of_the_tree() {
        let read = |line| read(line).unwrap();
        let expected = |licence: &str| Package { name: "a-b".into(), version: "1.2.3".into(), licence: licence.into() };
        assert_eq!(read("a-b v1.2.3|MIT/Apache-2.0"), expected("MIT OR Apache-2.0"));
        assert_eq!(read("a-b v1.2.3 (proc-macro)|ISC (*)"), expected("ISC"));
        assert_eq!(read("a-b v1.2.3 (/somewhere/a-b)|MIT"), expected("MIT"));
    }

    #[test]
    fn the_bill_of_materials_names_every_package_but_the_product_as_a_component() {
        let package = |name: &str| Package { name: name.into(), version: "1.0.0".into(), licence: "MIT".into() };
        let bill = bill_of_materials(&[package("posthaste"), package("serde")]);
        assert!(bill.contains(r#""purl": "pkg:cargo/serde@1.0.0""#) && !bill.contains("pkg:cargo/posthaste"), "{bill}");
    }
}
