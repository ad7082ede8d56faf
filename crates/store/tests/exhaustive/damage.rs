//! F8, F9, F11: files that are damaged, directories that are not ours. Refused, and never begun anew.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use posthaste_store::{Error, Sqlite};

use crate::child::{Scene, kill, options};

/// Data as a process leaves it that was killed.
fn killed(name: &str) -> Scene {
    let scene = Scene::new(name);
    let child = scene.start(&[]);
    scene.wait_until("it has written for a while", |lines| lines.len() > 300);
    kill(child);
    scene
}

fn refused(scene: &Scene, what: &str) {
    match Sqlite::open(&scene.data(), options()) {
        Err(Error::Unusable(message)) => {
            println!("{what}: {message}");
            assert!(message.contains("damaged"), "{what}: {message}");
        }
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: it was opened"),
    }
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

fn cut(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

#[test]
fn f9_a_log_that_is_missing_or_damaged_after_an_unclean_stop_is_noticed() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 4] = [
        ("the log is gone", |log| std::fs::remove_file(log).unwrap()),
        ("the log is empty", |log| cut(log, 0)),
        ("the log is cut", |log| cut(log, std::fs::metadata(log).unwrap().len() / 2)),
        ("the log has a flipped bit", |log| overwrite(log, std::fs::metadata(log).unwrap().len() / 3, &[0xff; 8])),
    ];
    for (what, harm) in harms {
        let scene = killed("log");
        harm(&scene.data().join("posthaste.db-wal"));
        refused(&scene, what);
        refused(&scene, &format!("{what}, asked again"));
    }
}

#[test]
fn f9_a_database_file_that_is_damaged_is_noticed() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 5] = [
        ("the file is gone", |file| std::fs::remove_file(file).unwrap()),
        ("the file is empty", |file| cut(file, 0)),
        ("the first page is zero", |file| overwrite(file, 0, &[0; 4096])),
        ("the file is cut", |file| cut(file, std::fs::metadata(file).unwrap().len() / 2)),
        ("pages in the middle are noise", |file| {
            let pages = std::fs::metadata(file).unwrap().len() / 4096;
            (pages / 4..pages / 2).for_each(|page| overwrite(file, page * 4096, &[0xa5; 64]));
        }),
    ];
    for (what, harm) in harms {
        let scene = killed("file");
        // Stopped cleanly since then, so that everything is in the file.
        drop(Sqlite::open(&scene.data(), options()).unwrap());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while scene.data().join("posthaste.running").exists() {
            assert!(std::time::Instant::now() < deadline, "the last handle closes it");
            std::thread::yield_now();
        }
        harm(&scene.data().join("posthaste.db"));
        refused(&scene, what);
    }
}

#[test]
fn f11_a_second_process_is_refused() {
    let scene = Scene::new("second");
    let child = scene.start(&[]);
    scene.wait_until("the first one runs", |lines| !lines.is_empty());
    let Err(Error::Unusable(message)) = Sqlite::open(&scene.data(), options()) else { panic!("it was opened twice") };
    assert!(message.contains("another Posthaste process"), "{message}");
    kill(child);
    drop(Sqlite::open(&scene.data(), options()).unwrap());
}

#[test]
fn f8_a_directory_that_cannot_be_used_is_refused_with_a_plain_message() {
    let scene = Scene::new("nodir");
    std::fs::write(scene.data(), "a file").unwrap();
    let Err(Error::Unusable(message)) = Sqlite::open(&scene.data(), options()) else { panic!("it was opened") };
    assert!(message.contains("--data-dir"), "{message}");
    let Err(Error::Unusable(_)) = Sqlite::open(Path::new("/proc/posthaste"), options()) else { panic!("it was opened") };
}
