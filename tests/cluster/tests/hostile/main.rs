//! What a hostile peer can do to a cluster: rows of it, on real sockets, beside an honest client that notices no more of it than a part
//! of its rate.
//!
//! `hostile_input` has what a single bad message does; here is what takes time, memory, connections or a good key.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_precision_loss)] // a test: a panic is its way to fail

mod bench;
mod fields;
mod floods;
mod honest;
mod identities;
mod others;
mod rounds;
mod slow;

use bench::Bench;
use std::time::Duration;

/// How long the honest client is alone, before and after.
const ALONE: Duration = Duration::from_secs(5);

#[test]
fn hostile_peers_are_answered_closed_and_counted_and_the_honest_client_goes_on() {
    let mut bench = Bench::new(ALONE);
    // What waits for the node's longest deadlines goes on beside the rest.
    let slow = slow::Slow::begin(&bench);
    identities::rows(&mut bench);
    fields::rows(&mut bench);
    others::rows(&mut bench);
    slow::half_closed(&mut bench);
    slow.end(&mut bench);
    floods::rows(&mut bench);
    bench.end(ALONE);
}

#[test]
fn a_flood_of_streams_over_tls_is_accepted_as_slowly_as_it_costs_and_others_are_served() {
    floods::over_tls();
}

#[test]
fn connections_that_come_and_go_and_ones_cut_in_mid_transfer_leave_nothing_behind() {
    rounds::rounds();
}
