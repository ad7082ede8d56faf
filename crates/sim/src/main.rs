//! `cargo xtask fleet` runs this.

use clap::Parser;
use posthaste_sim::fleet::{self, Options};

#[derive(Parser)]
#[command(about = "Adaptive timeouts against a fixed one, over a fleet of destinations")]
struct Arguments {
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 200)]
    destinations: u32,
    #[arg(long, default_value_t = 60)]
    days: u32,
    /// So many times the traffic.
    #[arg(long, default_value_t = 1)]
    busier: u32,
}

fn main() {
    let Arguments { seed, destinations, days, busier } = Arguments::parse();
    let options = Options { seed, destinations, days, busier };
    println!("{destinations} destinations over {days} days, seed {seed}: a fixed timeout of 10 s against adaptive timeouts\n");
    let (fixed, adaptive) = std::thread::scope(|scope| {
        let fixed = scope.spawn(|| fleet::run(&options, fleet::Arm::Fixed));
        let adaptive = scope.spawn(|| fleet::run(&options, fleet::Arm::Adaptive));
        (fixed.join().expect("the fixed arm runs"), adaptive.join().expect("the adaptive arm runs"))
    });
    print!("{}", fleet::table(&fixed, &adaptive));
}
