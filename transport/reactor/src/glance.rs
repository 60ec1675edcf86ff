//! A look at a disk that may be anybody's, and that may hang: without a lock, and without a thread that cannot be ended.
//!
//! Who is in read(2) of a device that does not answer cannot be ended: past the page cache it cannot be killed, and through it the close that
//! follows waits for the pages that are being read. A process with such a thread keeps its locks and ports. Who waits for a ring can be
//! ended, and the kernel keeps the file open until the read is over.

use crate::ring::harmless;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;

/// Bytes of a block.
const BLOCK: usize = 4096;

/// Aligned as a device wants it.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK]);

/// Reads so many blocks from a file or block device, however long that takes; less where it ends before. Of a device past the page cache: what
/// is left in the cache by a read that hangs would be waited for when the device is closed.
pub fn glance(file: &File, at: u64, blocks: usize) -> io::Result<Vec<u8>> {
    let device = file.metadata()?.file_type().is_block_device();
    // A ring takes the flag that keeps an open from waiting for a wish that it does not wait either.
    fcntl(file, FcntlArg::F_SETFL(if device { OFlag::O_DIRECT } else { OFlag::empty() }))?;
    let mut ring = IoUring::new(1)?;
    let mut memory = vec![Block([0; BLOCK]); blocks];
    let (mut done, whole) = (0, size_of_val(&memory[..]));
    while done < whole {
        let into = memory.as_mut_ptr().cast::<u8>().wrapping_add(done);
        let left = u32::try_from(whole - done).map_err(|_| io::ErrorKind::InvalidInput)?;
        let read = opcode::Read::new(Fd(file.as_raw_fd()), into, left).offset(at + done as u64).build();
        // SAFETY: the memory is there, and `left` bytes of it, until the completion is seen; if none comes it is leaked.
        unsafe { ring.submission().push(&read) }.map_err(io::Error::other)?;
        let result = loop {
            if let Err(error) = harmless(ring.submit_and_wait(1)) {
                std::mem::forget(memory);
                return Err(io::Error::from_raw_os_error(error.0));
            }
            if let Some(over) = ring.completion().next() {
                break over.result();
            }
        };
        match usize::try_from(result) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(_) => return Err(io::Error::from_raw_os_error(-result)),
        }
    }
    let mut bytes: Vec<u8> = memory.iter().flat_map(|block| block.0).collect();
    bytes.truncate(done);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_is_read_as_there_is() {
        let path = std::env::temp_dir().join(format!("trine-glance-{}", std::process::id()));
        let content: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        std::fs::write(&path, &content).unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(glance(&file, 0, 16).unwrap(), content);
        assert_eq!(glance(&file, 4096, 1).unwrap(), content[4096..8192]);
        assert_eq!(glance(&file, 8192, 1).unwrap(), content[8192..]);
        assert!(glance(&file, 12288, 1).unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
    }
}
