//! The lifetimes of a connection over RDMA: what `tests/guest/inside/7.2/rdma` runs in two network namespaces.
//!
//! ```text
//!   lifetimes ADDR:PORT CLIENT-SPACE SERVER-SPACE ROUNDS [NAME TIMES]
//! ```
//!
//! With a name: the cases that have it in theirs, so many times, to find what is rare.

use anyhow::{Result, bail};
use lifetimes::{CASES, Over, Reactors, run};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (at, client, server, rounds, name, times) = match &args[..] {
        [at, client, server, rounds] => (at, client, server, rounds, "", 1),
        [at, client, server, rounds, name, times] => (at, client, server, rounds, name.as_str(), times.parse()?),
        _ => bail!("usage: lifetimes ADDR:PORT CLIENT-SPACE SERVER-SPACE ROUNDS [NAME TIMES]"),
    };
    let over = Over::Rdma { at: at.parse()?, spaces: Some([client.clone(), server.clone()]) };
    for _ in 0..times {
        let cases = CASES.into_iter().filter(|(case, _)| case.contains(name));
        run(cases, rounds.parse()?, || Box::new(Reactors::new(&over)));
    }
    Ok(())
}
