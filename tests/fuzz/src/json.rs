//! JSON of any shape, and back.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Reads JSON; what was read is written so that the same is read again.
pub(crate) fn alike<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let read: T = serde_json::from_slice(bytes).ok()?;
    let again = serde_json::to_vec(&read).expect("it was JSON");
    assert_eq!(serde_json::from_slice::<T>(&again).expect("written by us"), read);
    Some(read)
}

/// A line: a head, then JSON.
pub(crate) fn line(head: &str, what: &impl Serialize) -> Vec<u8> {
    [head.as_bytes(), &serde_json::to_vec(what).expect("it can be written")].concat()
}
