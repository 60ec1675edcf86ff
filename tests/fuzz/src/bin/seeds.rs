//! Writes each target's seeds, encoded by the code under test, to `DIRECTORY/TARGET/`, and lists the targets with their longest inputs.
#![forbid(unsafe_code)]

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let directory = env::args_os().nth(1).ok_or_else(|| io::Error::other("name a directory"))?;
    for target in &fuzz::TARGETS {
        println!("{} {}", target.name, target.longest);
        let directory = Path::new(&directory).join(target.name);
        fs::create_dir_all(&directory)?;
        for (n, seed) in (target.seeds)().iter().enumerate() {
            fs::write(directory.join(format!("seed-{n:02}")), seed)?;
        }
    }
    Ok(())
}
