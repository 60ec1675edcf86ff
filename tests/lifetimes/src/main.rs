//! The lifetimes of a connection over RDMA: what `tests/guest/inside/7.2/rdma` runs in two network namespaces.
//!
//! ```text
//!   lifetimes ADDR:PORT CLIENT-SPACE SERVER-SPACE ROUNDS
//! ```

use anyhow::{Result, bail};
use lifetimes::{Over, Reactors, run};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [at, client, server, rounds] = &args[..] else {
        bail!("usage: lifetimes ADDR:PORT CLIENT-SPACE SERVER-SPACE ROUNDS")
    };
    let over = Over::Rdma { at: at.parse()?, spaces: Some([client.clone(), server.clone()]) };
    run(rounds.parse()?, || Box::new(Reactors::new(&over)));
    Ok(())
}
