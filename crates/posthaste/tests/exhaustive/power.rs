//! F3: the power goes, and with it everything that was not flushed. What a caller was told stays true.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use posthaste_checker::draw::Draw;
use posthaste_checker::server::signal_group;
use posthaste_checker::world::World;

use crate::{check_and_collect, furnished, wait_until};

const CUTS: usize = 10;

/// A file system in a file, mounted at the data directory.
struct Disk {
    image: PathBuf,
    place: PathBuf,
}

impl Disk {
    /// With what the data directory had in it. `None` where the machine allows no loop mounts.
    fn under(world: &World) -> Option<Disk> {
        let place = world.program.data_dir.clone();
        let disk = Disk { image: place.with_extension("disk"), place };
        let aside = disk.place.with_extension("aside");
        std::fs::File::create(&disk.image).unwrap().set_len(256 * 1024 * 1024).unwrap();
        std::fs::rename(&disk.place, &aside).unwrap();
        std::fs::create_dir(&disk.place).unwrap();
        let is_made = succeeds(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk.image));
        if !(Path::new("/dev/loop-control").exists() && is_made && disk.mount()) {
            println!("not run: this machine allows no loop mounts");
            return None;
        }
        assert!(succeeds(Command::new("cp").arg("-a").arg(format!("{}/.", aside.display())).arg(&disk.place)));
        assert!(succeeds(Command::new("sync").arg("-f").arg(&disk.place)), "what was there before is on the disk");
        Some(disk)
    }

    fn mount(&self) -> bool {
        succeeds(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.place))
    }

    /// `EXT4_IOC_SHUTDOWN` without flushing the journal: what was not on the disk is gone.
    fn cut(&self) {
        let program =
            "import fcntl, os, struct, sys; fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
        assert!(succeeds(Command::new("python3").args(["-c", program]).arg(&self.place)));
    }

    fn unmount(&self) {
        assert!(succeeds(Command::new("umount").arg(&self.place)));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.place).status();
    }
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i2_power_cuts_under_load_lose_nothing_that_was_acknowledged() {
    let mut world = furnished(3).await;
    let Some(disk) = Disk::under(&world) else { return };
    let mut draw = Draw::new(world.seed);
    world.start(&[]).await.unwrap();
    let publishing = world.publish(300);
    for _ in 0..CUTS {
        let before = world.desk.count();
        wait_until("events are acknowledged", || world.desk.acknowledged_since(before) > 20).await;
        // A moment of its own each time.
        tokio::time::sleep(Duration::from_millis(draw.between(0, 60))).await;
        // Nothing is answered between the last flush and the cut.
        signal_group(world.process().unwrap().id(), "STOP").unwrap();
        disk.cut();
        world.kill().unwrap();
        disk.unmount();
        assert!(disk.mount());
        world.start(&[]).await.unwrap();
    }
    publishing.stop().await;
    let evidence = check_and_collect(&mut world).await;
    println!("{} calls over {CUTS} power cuts, all is well", evidence.publishes.len());
    world.stop().await.unwrap();
}
