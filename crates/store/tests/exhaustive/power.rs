//! F3: the power goes, and with it everything that was not flushed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::child::{Scene, kill};

/// A file system in a file, to be cut off.
struct Disk<'a> {
    scene: &'a Scene,
}

impl<'a> Disk<'a> {
    /// `None` where the machine allows no loop mounts.
    fn new(scene: &'a Scene) -> Option<Disk<'a>> {
        let image = scene.directory.join("disk");
        std::fs::File::create(&image).unwrap().set_len(256 * 1024 * 1024).unwrap();
        std::fs::create_dir_all(scene.data()).unwrap();
        let is_made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).status().is_ok_and(|status| status.success());
        let disk = Disk { scene };
        (is_made && disk.mount()).then_some(disk)
    }

    fn mount(&self) -> bool {
        let mount =
            Command::new("mount").args(["-o", "loop"]).arg(self.scene.directory.join("disk")).arg(self.scene.data()).status();
        mount.is_ok_and(|status| status.success())
    }

    /// `EXT4_IOC_SHUTDOWN` without flushing the journal: what was not on disk is gone.
    fn cut(&self) {
        let program =
            "import fcntl, os, struct, sys; fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
        let cut = Command::new("python3").args(["-c", program]).arg(self.scene.data()).status().unwrap();
        assert!(cut.success());
    }

    fn unmount(&self) {
        assert!(Command::new("umount").arg(self.scene.data()).status().unwrap().success());
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.scene.data()).status();
    }
}

fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i2_twenty_power_cuts_lose_nothing_that_was_acknowledged() {
    if !Path::new("/dev/loop-control").exists() {
        println!("not run: this machine allows no loop mounts");
        return;
    }
    let scene = Scene::new("power");
    let Some(disk) = Disk::new(&scene) else {
        println!("not run: this machine allows no loop mounts");
        return;
    };
    let mut total = 0;
    for cycle in 0..20u64 {
        let before = scene.lines().len();
        let child = scene.start(&[]);
        scene.wait_until("something was acknowledged", |lines| lines.len() > before + 5);
        std::thread::sleep(Duration::from_millis(cycle * 7 % 60));
        signal(child.id(), "-STOP");
        disk.cut();
        kill(child);
        disk.unmount();
        assert!(disk.mount());
        total = scene.check().await;
    }
    println!("{total} events were acknowledged over 20 power cuts, and all of them are there");
}
