//! Content of a file during a response.

use std::{
    fs::File,
    future::Future,
    io::{ErrorKind, Result},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::SystemTime,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::task::JoinHandle;

use super::store::{CHUNK, Store, Version};
use crate::ending::BodyError;

/// Source of a file's content.
pub(super) struct Source {
    store: Arc<Store>,
    version: Version,
    from: Origin,
}

enum Origin {
    /// All of it is here.
    Memory(Bytes),
    File(Arc<File>),
}

impl Source {
    /// A file that one chunk holds, and that is in memory.
    pub(super) fn kept(version: Version, store: &Arc<Store>) -> Option<Self> {
        let data = if version.length() <= CHUNK { store.find(version, 0)? } else { return None };
        Some(Self { store: store.clone(), version, from: Origin::Memory(data) })
    }

    /// A file that was opened. It may be another one than was seen under its name before.
    pub(super) fn open(file: File, store: &Arc<Store>) -> Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(ErrorKind::NotFound.into());
        }
        Ok(Self { store: store.clone(), version: Version::of(&metadata), from: Origin::File(Arc::new(file)) })
    }

    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// Reads `length` bytes from `first` on, which have to be in the file.
    pub(super) fn part(self, first: u64, length: u64) -> Result<Part> {
        let Self { store, version, from } = self;
        let end = first + length;
        let file = match from {
            // A chunk fits into memory.
            Origin::Memory(data) => return Ok(Part::Whole(data.slice(first as usize..end as usize))),
            Origin::File(file) => file,
        };
        let mut reading = Reading { store, version, file, at: first, end, waits: None };
        if length == 0 {
            return Ok(Part::Whole(Bytes::new()));
        }
        if first / CHUNK != (end - 1) / CHUNK {
            return Ok(Part::Reading(reading));
        }
        match reading.chunk() {
            Ok(chunk) => Ok(Part::Whole(reading.cut(chunk))),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Part::Reading(reading)),
            Err(error) => Err(error),
        }
    }
}

/// Requested content.
pub(super) enum Part {
    /// Content in memory.
    Whole(Bytes),
    Reading(Reading),
}

/// A file during its response.
pub(super) struct Reading {
    store: Arc<Store>,
    version: Version,
    file: Arc<File>,
    /// Next byte, and the end of the requested range.
    at: u64,
    end: u64,
    /// Waits for the disk.
    waits: Option<JoinHandle<Result<Bytes>>>,
}

impl Reading {
    /// The chunk that is next, if it is in memory: here or in the page cache.
    fn chunk(&self) -> Result<Bytes> {
        let chunk = self.at / CHUNK;
        match self.store.find(self.version, chunk) {
            Some(data) => Ok(data),
            None => self.store.read(&self.file, self.version, chunk, false, SystemTime::now()),
        }
    }

    /// Cuts the wanted part out of the next chunk.
    fn cut(&mut self, chunk: Bytes) -> Bytes {
        let begin = self.at / CHUNK * CHUNK;
        let end = self.end.min(begin + CHUNK);
        // Both are within the chunk.
        let data = chunk.slice((self.at - begin) as usize..(end - begin) as usize);
        self.at = end;
        data
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes>> {
        if self.waits.is_none() {
            match self.chunk() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
        let waits = self.waits.get_or_insert_with(|| {
            let (store, file, version, chunk) = (self.store.clone(), self.file.clone(), self.version, self.at / CHUNK);
            tokio::task::spawn_blocking(move || store.read(&file, version, chunk, true, SystemTime::now()))
        });
        let done = ready!(Pin::new(waits).poll(cx));
        self.waits = None;
        Poll::Ready(done.unwrap_or_else(|error| Err(error.into())))
    }
}

impl Body for Reading {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, BodyError>>> {
        if self.at == self.end {
            return Poll::Ready(None);
        }
        let chunk = ready!(self.poll_chunk(cx))?;
        Poll::Ready(Some(Ok(Frame::data(self.cut(chunk)))))
    }

    fn is_end_stream(&self) -> bool {
        self.at == self.end
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.end - self.at)
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, process::Command};

    use http_body_util::BodyExt;

    use super::*;

    fn content() -> Vec<u8> {
        (0..1_000_000_u32).map(|at| (at >> 8) as u8).collect()
    }

    async fn part(source: Source, first: u64, length: u64) -> std::result::Result<Bytes, BodyError> {
        match source.part(first, length)? {
            Part::Whole(data) => Ok(data),
            Part::Reading(reading) => {
                assert_eq!(reading.size_hint().exact(), Some(length));
                reading.collect().await.map(http_body_util::Collected::to_bytes)
            }
        }
    }

    #[tokio::test]
    async fn what_only_the_disk_has_is_read_as_well() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&content()).unwrap();
        file.as_file().sync_all().unwrap();
        // Asks the system to forget what it has read of the file.
        let input = format!("if={}", file.path().display());
        let forgotten = Command::new("dd").args([&input, "iflag=nocache", "count=0", "status=none"]).status();
        assert!(forgotten.unwrap().success());
        let source = || Source::open(File::open(file.path()).unwrap(), &Arc::default()).unwrap();
        assert!(part(source(), 900_000, 5).await.unwrap() == content()[900_000..900_005]);
        assert!(part(source(), 100, 999_000).await.unwrap() == content()[100..999_100]);
        assert_eq!(part(source(), 0, 0).await.unwrap(), "");
    }

    #[tokio::test]
    async fn a_file_that_becomes_shorter_breaks_off() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&content()).unwrap();
        let source = Source::open(File::open(file.path()).unwrap(), &Arc::default()).unwrap();
        file.as_file().set_len(500_000).unwrap();
        assert!(part(source, 0, 1_000_000).await.is_err());
    }
}
