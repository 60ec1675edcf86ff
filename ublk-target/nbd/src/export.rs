//! What a session serves.

use crate::limits::MAX_STRING;
use crate::wire::flag;
use conductor_model::Bytes;

/// One volume as its clients see it.
#[derive(Clone, Debug)]
pub struct Export {
    name: String,
    description: String,
    /// Its size; commands end here.
    pub size: Bytes,
    /// Writing commands are refused.
    pub read_only: bool,
    /// Zeroes may be asked for with "only if it is fast"; such a request is finished with `Fault::NotSupported` where it is not.
    pub fast_zero: bool,
}

/// Why something cannot be exported.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExportError {
    /// The protocol cannot carry the string.
    #[error("export {what} has {len} bytes: NBD allows {MAX_STRING}; choose a shorter one")]
    TooLong {
        /// Which string.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
    },
}

impl Export {
    /// A writable export without fast zeroes. Clients that name no export get it too.
    pub fn new(name: &str, description: &str, size: Bytes) -> Result<Self, ExportError> {
        for (what, string) in [("name", name), ("description", description)] {
            if string.len() > MAX_STRING {
                return Err(ExportError::TooLong { what, len: string.len() });
            }
        }
        Ok(Self {
            name: name.to_owned(),
            description: description.to_owned(),
            size,
            read_only: false,
            fast_zero: false,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A sentence for people.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// True if this is the export that a client means. The empty name is the default export's.
    pub(crate) fn is_called(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The transmission flags. Several connections are safe: a flush on one covers what was acknowledged on all.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
        if structured {
            flags |= flag::SEND_DF;
        }
        if self.read_only {
            return flags | flag::READ_ONLY;
        }
        if self.fast_zero {
            flags |= flag::SEND_FAST_ZERO;
        }
        flags | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES
    }
}
