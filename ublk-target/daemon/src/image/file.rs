//! The file that an image is in: read and written in order, its zeros left out where it has places.

use super::format::{self, FOOTER};
use crate::error::TargetError;
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Zeros that are as long as this, and begin at a multiple of it, are left out: what a filesystem's block rarely undercuts, and a request is worth.
const GRAIN: usize = 64 << 10;
/// What a volume's size is a multiple of.
const BLOCK: usize = 4096;
/// What an image's format is told by.
const HEAD: usize = 512;
/// Most bytes at a time.
pub(super) const PIECE: usize = 1 << 20;

/// Whether all of an image is there, or is not to be any more: one of both for ever.
#[derive(Clone, Debug, Default)]
pub(super) struct Fate(Arc<Mutex<Option<bool>>>);

impl Fate {
    /// It is there; or it was not yet, and what is still under way comes to nothing.
    pub(super) fn is_done(&self) -> bool {
        *self.lock().get_or_insert(false)
    }

    fn lock(&self) -> MutexGuard<'_, Option<bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where an image goes.
#[derive(Debug)]
pub struct Sink {
    file: File,
    path: PathBuf,
    /// A file of our own, in which what is not written is zero: its name until all of it is there.
    part: Option<PathBuf>,
    fate: Fate,
}

impl Sink {
    /// A new file. Until all of it is there it is called `….part`.
    pub fn create(path: &Path) -> Result<Self, TargetError> {
        if path.is_dir() {
            return Err(TargetError::Directory(path.to_owned()));
        }
        if path.symlink_metadata().is_ok() {
            return Err(TargetError::Exists(path.to_owned()));
        }
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let file = File::create_new(&part).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => TargetError::CutShort(part.clone()),
            _ => TargetError::file("create", &part)(error),
        })?;
        Ok(Self { file, path: path.to_owned(), part: Some(part), fate: Fate::default() })
    }

    /// The standard output, zeros and all.
    pub fn stdout() -> Result<Self, TargetError> {
        let file =
            std::io::stdout().as_fd().try_clone_to_owned().map_err(TargetError::system("use the standard output"))?;
        Ok(Self { file: file.into(), path: PathBuf::from("the standard output"), part: None, fate: Fate::default() })
    }

    /// What there is until all of it is there.
    pub(super) fn part(&self) -> Option<PathBuf> {
        self.part.clone()
    }

    pub(super) fn fate(&self) -> Fate {
        self.fate.clone()
    }

    pub(super) fn begin(&self, size: u64) -> Result<(), TargetError> {
        if self.part.is_some() {
            self.file.set_len(size).map_err(TargetError::file("resize", &self.path))
        } else {
            Ok(())
        }
    }

    /// The next bytes are these, from `at` on.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), TargetError> {
        let written = if self.part.is_some() {
            runs(bytes)
                .into_iter()
                .try_for_each(|run| self.file.write_all_at(&bytes[run.clone()], at + run.start as u64))
        } else {
            self.file.write_all(bytes)
        };
        written.map_err(TargetError::file("write", &self.path))
    }

    /// The next bytes are so many zeros.
    pub(super) fn skip(&mut self, len: u64) -> Result<(), TargetError> {
        if self.part.is_some() {
            return Ok(());
        }
        let copied = std::io::copy(&mut std::io::repeat(0).take(len), &mut self.file);
        copied.map(drop).map_err(TargetError::file("write", &self.path))
    }

    /// All of it is there, to stay.
    pub(super) fn end(&self) -> Result<(), TargetError> {
        use std::io::ErrorKind::{InvalidInput, ReadOnlyFilesystem, Unsupported};
        match (self.file.sync_all(), &self.part) {
            // A pipe keeps nothing.
            (Err(error), None) if matches!(error.kind(), InvalidInput | ReadOnlyFilesystem | Unsupported) => {}
            (synced, _) => synced.map_err(TargetError::file("flush", &self.path))?,
        }
        // Who asks meanwhile hears how it ended.
        let mut fate = self.fate.lock();
        if fate.is_some() {
            return Err(TargetError::Interrupted);
        }
        self.name()?;
        *fate = Some(true);
        Ok(())
    }

    /// Gives the file its name, to stay.
    fn name(&self) -> Result<(), TargetError> {
        let Some(part) = &self.part else { return Ok(()) };
        let named = || {
            // By a link nothing is replaced that came there meanwhile; not every file system has any.
            match std::fs::hard_link(part, &self.path) {
                Ok(()) => std::fs::remove_file(part)?,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) => std::fs::rename(part, &self.path)?,
            }
            let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(dir)?.sync_all()
        };
        named().map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => TargetError::Exists(self.path.clone()),
            _ => TargetError::file("name", &self.path)(error),
        })
    }
}

/// What comes next of an image.
#[derive(Debug)]
pub(crate) enum Piece {
    /// At most [`PIECE`] bytes that are not all zeros; with zeros up to whole blocks.
    Bytes { at: u64, bytes: Vec<u8> },
    /// Zeros up to there.
    Zeros { to: u64 },
    /// Nothing.
    End { at: u64 },
}

/// Where an image comes from.
#[derive(Debug)]
pub struct Source {
    file: File,
    path: PathBuf,
    /// Of what has places, which ends there.
    len: Option<u64>,
    /// Whatever it begins like, it is raw.
    raw: bool,
    /// What follows begins here.
    at: u64,
    /// Read, and not yet taken.
    pieces: VecDeque<(u64, Vec<u8>)>,
}

impl Source {
    /// A file, a block device or a pipe.
    pub fn open(path: &Path) -> Result<Self, TargetError> {
        let failed = || TargetError::file("open", path);
        let mut file = File::open(path).map_err(failed())?;
        let kind = file.metadata().map_err(failed())?.file_type();
        if kind.is_dir() {
            return Err(failed()(std::io::ErrorKind::IsADirectory.into()));
        }
        let has_places = kind.is_file() || kind.is_block_device();
        let len = has_places.then(|| file.seek(SeekFrom::End(0))).transpose().map_err(failed())?;
        Ok(Self { file, path: path.to_owned(), len, raw: false, at: 0, pieces: VecDeque::new() })
    }

    /// The standard input, to its end.
    pub fn stdin() -> Result<Self, TargetError> {
        let file =
            std::io::stdin().as_fd().try_clone_to_owned().map_err(TargetError::system("use the standard input"))?;
        let path = PathBuf::from("the standard input");
        Ok(Self { file: file.into(), path, len: None, raw: false, at: 0, pieces: VecDeque::new() })
    }

    /// The bytes as they are, whatever they begin like.
    pub fn raw(self) -> Self {
        Self { raw: true, ..self }
    }

    /// Is it in a format of its own? A pipe's beginning is seen when it comes.
    pub fn check(&self) -> Result<(), TargetError> {
        let Some(len) = self.len else { return Ok(()) };
        let (mut head, mut last) = ([0; HEAD], [0; FOOTER]);
        let read = self.file.read_at(&mut head, 0).map_err(TargetError::file("read", &self.path))?;
        self.check_head(&head[..read])?;
        if let Some(at) = len.checked_sub(FOOTER as u64) {
            self.file.read_exact_at(&mut last, at).map_err(TargetError::file("read", &self.path))?;
        }
        self.refuse(format::of_end(&last))
    }

    fn check_head(&self, head: &[u8]) -> Result<(), TargetError> {
        self.refuse(format::of(head))
    }

    fn refuse(&self, format: Option<&'static str>) -> Result<(), TargetError> {
        match format.filter(|_| !self.raw) {
            Some(format) => Err(TargetError::NotRaw { path: self.path.clone(), format }),
            None => Ok(()),
        }
    }

    /// How long it is, where that is known.
    pub fn size(&self) -> Option<u64> {
        self.len
    }

    /// What comes next.
    pub(super) fn next(&mut self) -> Result<Piece, TargetError> {
        if let Some((at, bytes)) = self.pieces.pop_front() {
            return Ok(Piece::Bytes { at, bytes });
        }
        self.leap()?;
        let left = self.len.map_or(u64::MAX, |len| len.saturating_sub(self.at));
        let (at, mut bytes) = (self.at, vec![0; PIECE.min(usize::try_from(left).unwrap_or(PIECE))]);
        let len = self.fill(&mut bytes).map_err(TargetError::file("read", &self.path))?;
        if len == 0 {
            return self.ended().map(|()| Piece::End { at }).map_err(TargetError::file("read", &self.path));
        }
        if at == 0 {
            self.check_head(&bytes[..len])?;
        }
        self.at += len as u64;
        bytes.resize(len.next_multiple_of(BLOCK), 0);
        self.pieces.extend(runs(&bytes).into_iter().map(|run| (at + run.start as u64, bytes[run].to_vec())));
        let first = self.pieces.pop_front();
        Ok(first.map_or(Piece::Zeros { to: self.at }, |(at, bytes)| Piece::Bytes { at, bytes }))
    }

    /// Reads as much as there is room for, or there is.
    fn fill(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let mut len = 0;
        while len < bytes.len() {
            let read = match self.len {
                Some(_) => self.file.read_at(&mut bytes[len..], self.at + len as u64),
                None => self.file.read(&mut bytes[len..]),
            };
            match read {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(len)
    }

    /// Is it as long as it was? Somebody may be writing to it.
    fn ended(&mut self) -> std::io::Result<()> {
        let Some(len) = self.len else { return Ok(()) };
        let is_same = self.at == len && self.file.seek(SeekFrom::End(0))? == len;
        if is_same { Ok(()) } else { Err(std::io::Error::other("its length has changed meanwhile")) }
    }

    /// Over a hole, if there is one. A file that cannot tell has none.
    fn leap(&mut self) -> Result<(), TargetError> {
        let Some(len) = self.len else { return Ok(()) };
        let from = i64::try_from(self.at).unwrap_or(i64::MAX);
        match lseek(&self.file, from, Whence::SeekData) {
            Ok(data) => self.at = u64::try_from(data).unwrap_or(0) / BLOCK as u64 * BLOCK as u64,
            Err(Errno::ENXIO) => self.at = len,
            Err(_) => {}
        }
        Ok(())
    }
}

/// Where something else than zeros is, in multiples of [`GRAIN`] and the end.
fn runs(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, grain) in bytes.chunks(GRAIN).enumerate() {
        let from = index * GRAIN;
        if grain.iter().all(|byte| *byte == 0) {
            continue;
        }
        match runs.last_mut().filter(|run| run.end == from) {
            Some(run) => run.end += grain.len(),
            None => runs.push(from..from + grain.len()),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A grain of zeros, one of ones, and so on, as `kinds` says, and a last one of `tail` bytes.
    fn bytes(kinds: &[u8], tail: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = kinds.iter().flat_map(|kind| std::iter::repeat_n(*kind, GRAIN)).collect();
        bytes.truncate(bytes.len().saturating_sub(GRAIN) + tail);
        bytes
    }

    #[test]
    fn zeros_are_left_out_grain_by_grain() {
        assert_eq!(runs(&bytes(&[0, 1, 1, 0, 1], 5000)), [GRAIN..3 * GRAIN, 4 * GRAIN..4 * GRAIN + 5000]);
        assert_eq!(runs(&bytes(&[0, 0], GRAIN)), [] as [Range<usize>; 0]);
        let mut one = bytes(&[0, 0, 0], GRAIN);
        one[GRAIN] = 1;
        assert_eq!(runs(&one), vec![GRAIN..2 * GRAIN; 1]);
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let path = std::env::temp_dir().join(format!("trine-image-{}", std::process::id()));
        let _before = std::fs::remove_file(&path);
        let mut content = vec![0; 5 * PIECE + 1234];
        for at in [0, 3 * GRAIN, 3 * PIECE - 1, 3 * PIECE, 5 * PIECE + 1233] {
            content[at] = 7;
        }
        let mut sink = Sink::create(&path).unwrap();
        sink.begin(content.len() as u64).unwrap();
        for (index, piece) in content.chunks(PIECE).enumerate() {
            sink.put((index * PIECE) as u64, piece).unwrap();
        }
        sink.end().unwrap();
        assert!(std::fs::read(&path).unwrap() == content);
        assert!(matches!(Sink::create(&path), Err(TargetError::Exists(_))), "it is there");
        assert!(!path.with_extension("part").exists() && sink.part().is_some_and(|part| !part.exists()));

        let mut source = Source::open(&path).unwrap();
        assert_eq!(source.size(), Some(content.len() as u64));
        let (mut read, mut moved) = (vec![0; content.len().next_multiple_of(BLOCK)], 0);
        loop {
            let (at, bytes) = match source.next().unwrap() {
                Piece::Bytes { at, bytes } => (usize::try_from(at).unwrap(), bytes),
                Piece::Zeros { .. } => continue,
                Piece::End { at } => break assert_eq!(at, content.len() as u64),
            };
            assert!(at.is_multiple_of(BLOCK) && bytes.len().is_multiple_of(BLOCK) && bytes.len() <= PIECE);
            read[at..at + bytes.len()].copy_from_slice(&bytes);
            moved += bytes.len();
        }
        assert!(read[..content.len()] == content[..], "another content");
        assert!(moved <= 5 * GRAIN, "{moved} bytes of five that are not zero");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_was_given_up_gets_no_name_and_what_has_one_is_done() {
        let path = std::env::temp_dir().join(format!("trine-image-fate-{}", std::process::id()));
        let _before = std::fs::remove_file(&path);
        let sink = Sink::create(&path).unwrap();
        let fate = sink.fate();
        assert!(!fate.is_done());
        assert!(matches!(sink.end(), Err(TargetError::Interrupted)) && !path.exists());
        std::fs::remove_file(sink.part().unwrap()).unwrap();
        let sink = Sink::create(&path).unwrap();
        sink.end().unwrap();
        assert!(sink.fate().is_done() && path.exists());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_directory_is_no_image() {
        assert!(matches!(Source::open(Path::new("/")), Err(TargetError::File { what: "open", .. })));
    }
}
