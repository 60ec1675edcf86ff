//! How far the filling of copies is, in words.

use crate::output::size;
use conductor_model::Bytes;
use conductor_model::views::FillInfo;
use std::time::Duration;

/// `copies filled: 1.2 GiB of 4 GiB (30 %), 100 MiB/s, 28s left`.
pub(crate) fn describe(filling: &FillInfo) -> String {
    let percent = u128::from(filling.done.0.min(filling.of.0)) * 100 / u128::from(filling.of.0.max(1));
    let pace = match (filling.rate, filling.eta_seconds()) {
        (Bytes(0), _) | (_, None) => "nothing moves".to_owned(),
        (rate, Some(left)) => {
            format!("{}/s, {} left", size(rate), humantime::format_duration(Duration::from_secs(left)))
        }
    };
    format!("copies filled: {} of {} ({percent} %), {pace}", size(filling.done), size(filling.of))
}

/// The limit of its rate.
pub(crate) fn limit(rate: Option<Bytes>) -> String {
    match rate {
        None => "as fast as nodes can".to_owned(),
        Some(Bytes(0)) => "paused: `trine conductor set --fill-rate max` goes on".to_owned(),
        Some(rate) => format!("at most {}/s on each reactor of a node", size(rate)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_a_percentage_and_an_end_if_there_is_one() {
        let filling =
            FillInfo { copies: 1, waiting: 0, done: Bytes(1 << 29), of: Bytes(1 << 30), rate: Bytes(1 << 23) };
        assert_eq!(describe(&filling), "copies filled: 512 MiB of 1 GiB (50 %), 8 MiB/s, 1m 4s left");
        assert_eq!(
            describe(&FillInfo { rate: Bytes(0), ..filling }),
            "copies filled: 512 MiB of 1 GiB (50 %), nothing moves"
        );
    }
}
