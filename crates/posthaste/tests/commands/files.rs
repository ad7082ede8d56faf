//! Files that only the server can read, and secrets that are given as files.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::server::{BINARY, Server};

const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// What it says before it ends by itself.
fn refusal(directory: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments).current_dir(directory).env_clear();
    let output = command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn files_are_for_the_server_alone_whatever_the_directory_and_the_umask() {
    let mut server = Server::start_bare("file-modes", &[]);
    let data = server.directory.join("posthaste-data");
    server.good("POST", "/v1/events", r#"{"type": "a.b", "data": 1}"#);
    let all_private = |data: &Path| {
        for entry in std::fs::read_dir(data).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(mode(&path) & 0o077, 0, "{}: {:04o}", path.display(), mode(&path));
        }
    };
    all_private(&data);
    // Somebody has opened up the directory and the files in it.
    server.end(false);
    set_mode(&data, 0o755);
    for name in ["posthaste.db", "posthaste.db-wal", "posthaste.db-shm"] {
        if data.join(name).exists() {
            set_mode(&data.join(name), 0o644);
        }
    }
    server.restart();
    server.good("POST", "/v1/events", r#"{"type": "a.b", "data": 1}"#);
    all_private(&data);
}

#[test]
fn a_loose_key_file_is_refused_with_the_command_that_mends_it() {
    let mut server = Server::start_bare("loose-key", &[]);
    server.end(false);
    for name in ["admin.key", "master.key"] {
        let path = server.directory.join("posthaste-data").join(name);
        set_mode(&path, 0o640);
        let said = refusal(&server.directory, &[], &[]);
        let (_, command) = said.trim().split_once("mend that with: ").unwrap_or_else(|| panic!("{said}"));
        let mended = Command::new("sh").args(["-c", command]).current_dir(&server.directory).status().unwrap();
        assert!(mended.success());
    }
    server.restart();
    assert_eq!(server.call("GET", "/v1/endpoints", "").0, 200);
}

#[test]
fn secrets_are_given_as_files_by_flag_by_variable_and_by_systemd() {
    let directory = std::env::temp_dir().join(format!("posthaste-secret-files-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(directory.join("credentials")).unwrap();
    let admin = "the-first-admin-key-of-this-test";
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, format!("{text}\n")).unwrap();
        set_mode(&path, 0o600);
        path.display().to_string()
    };
    let (admin_file, master_file) = (write("admin", admin), write("master", MASTER_KEY));
    write("credentials/posthaste.admin_key", admin);
    let credentials = directory.join("credentials").display().to_string();
    let check = |name: &str, flags: &[&str], variables: &[(&str, &str)]| {
        let server = Server::start_with_variables(name, flags, variables);
        let (status, _, answer) = server.exchange_as(admin, "GET", "/v1/endpoints", &[], "");
        assert_eq!(status, 200, "{name}: {answer}");
        assert!(!server.directory.join("posthaste-data/admin.key").exists(), "{name}");
    };
    check("secret-flags", &["--admin-key-file", &admin_file, "--master-key-file", &master_file], &[]);
    check("secret-variables", &[], &[("POSTHASTE_ADMIN_KEY_FILE", &admin_file), ("POSTHASTE_MASTER_KEY_FILE", &master_file)]);
    check("secret-credentials", &[], &[("CREDENTIALS_DIRECTORY", &credentials)]);

    let twice = refusal(&directory, &["--admin-key-file", &admin_file, "--admin-key", admin], &[]);
    assert!(twice.contains("--admin-key-file: the secret is given as a flag, too"), "{twice}");
    let twice = refusal(&directory, &[], &[("POSTHASTE_ADMIN_KEY_FILE", &admin_file), ("POSTHASTE_ADMIN_KEY", admin)]);
    assert!(twice.contains("POSTHASTE_ADMIN_KEY is set, too"), "{twice}");
    let missing = refusal(&directory, &["--admin-key-file", "/nowhere/at/all"], &[]);
    assert!(missing.contains("--admin-key-file: /nowhere/at/all cannot be read"), "{missing}");
    set_mode(Path::new(&admin_file), 0o644);
    let loose = refusal(&directory, &[], &[("POSTHASTE_ADMIN_KEY_FILE", &admin_file)]);
    assert!(loose.contains("chmod 600") && !loose.contains(admin), "{loose}");
    let _ = std::fs::remove_dir_all(&directory);
}

#[test]
fn the_first_admin_key_is_not_written_into_what_may_be_a_log() {
    let server = Server::start_bare("first-key", &[]);
    let said = server.said();
    assert!(!said.contains(&server.key), "{said}");
    let path = server.directory.join("posthaste-data/admin.key");
    let told = format!("the admin key was made and is in {}", Path::new("./posthaste-data/admin.key").display());
    assert!(said.contains(&told) && path.exists(), "{said}");
}
