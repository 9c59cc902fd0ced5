//! File that a matrix writes while it runs: the manifest, then a line per completed run.
//!
//! Every line has a checksum. A killed program or a full disk loses only the runs in progress: [`Journal::open`] finds every complete line,
//! whatever is between them, and the other runs are repeated. When all runs are complete, the lines are sorted by run. So the same matrix
//! has the same bytes, whatever happened while it ran.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use crate::{
    digest::seal,
    record::{Manifest, ReadError, Record, parse_manifest, parse_record},
};

/// A matrix on disk. Holds sixteen bytes per run in memory.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Positions of the runs' lines: offset and length.
    places: Vec<Option<(u64, u32)>>,
    /// Position of the next line.
    end: u64,
    head: u64,
    /// Lines are not in the order of the runs, or other text is between them.
    untidy: bool,
}

/// Damage found in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Lines that are no records, or not whole, from 1.
    pub lines: Vec<usize>,
    /// The last line has no end: the program was ended while it wrote.
    pub torn: bool,
}

impl Damage {
    /// Returns whether everything was as it was written.
    pub const fn is_none(&self) -> bool {
        self.lines.is_empty() && !self.torn
    }
}

/// A journal that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The first line is no manifest.
    #[error(transparent)]
    Manifest(#[from] ReadError),
    /// A record of another matrix.
    #[error("line {line} holds run {run}, and there are only {runs}")]
    Foreign {
        /// From 1.
        line: usize,
        /// Number.
        run: u64,
        /// Runs of the manifest.
        runs: usize,
    },
}

impl Journal {
    /// Creates a file for a matrix with this number of runs. Replaces an earlier one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(path: &Path, manifest: &Manifest, runs: usize) -> io::Result<Self> {
        let line = seal(serde_json::to_string(manifest).map_err(io::Error::other)?) + "\n";
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        file.write_all(line.as_bytes())?;
        let head = line.len() as u64;
        Ok(Self { path: path.to_owned(), file, places: vec![None; runs], end: head, head, untidy: false })
    }

    /// Opens an existing file. `runs` returns the number of runs of its manifest.
    ///
    /// # Errors
    /// When it cannot be read or written, its first line is damaged, or it holds runs that the manifest does not have.
    pub fn open(path: &Path, runs: impl FnOnce(&Manifest) -> usize) -> Result<(Self, Manifest, Damage), JournalError> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut lines = Lines::new(BufReader::new(file.try_clone()?));
        let first = lines.next_line()?.ok_or(ReadError::Empty)?;
        let manifest = parse_manifest(&first.text)?;
        let runs = runs(&manifest);
        let mut journal = Self {
            path: path.to_owned(),
            file,
            places: vec![None; runs],
            end: first.length,
            head: first.length,
            untidy: false,
        };
        let mut damage = Damage::default();
        let mut last = None;
        while let Some(line) = lines.next_line()? {
            if !line.ended {
                damage.torn = true;
                break;
            }
            journal.end = line.offset + line.length;
            let Some(record) = parse_record(line.number, &line.text).ok() else {
                damage.lines.push(line.number);
                journal.untidy = true;
                continue;
            };
            let place = usize::try_from(record.run).ok().and_then(|run| journal.places.get_mut(run));
            let Some(place) = place else {
                return Err(JournalError::Foreign { line: line.number, run: record.run, runs });
            };
            journal.untidy |= place.is_some() || last.is_some_and(|last| last >= record.run);
            *place = Some((line.offset, u32::try_from(line.length).unwrap_or(u32::MAX)));
            last = Some(record.run);
        }
        // What has no end is cut off, so that the next line begins at a beginning.
        journal.file.set_len(journal.end)?;
        Ok((journal, manifest, damage))
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs that are not there yet.
    pub fn missing(&self) -> impl Iterator<Item = usize> {
        self.places.iter().enumerate().filter(|(_, place)| place.is_none()).map(|(run, _)| run)
    }

    /// Number of stored runs.
    pub fn stored(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// Adds the record of a run. On an error no part of it remains.
    ///
    /// # Errors
    /// When the file cannot be written: the disk is full.
    pub fn append(&mut self, record: &Record) -> io::Result<()> {
        let line = seal(serde_json::to_string(record).map_err(io::Error::other)?) + "\n";
        self.file.seek(SeekFrom::Start(self.end))?;
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            // A piece of a line that stays is cut off when the file is opened again.
            let _ = self.file.set_len(self.end);
            return Err(error);
        }
        let Some(place) = usize::try_from(record.run).ok().and_then(|run| self.places.get_mut(run)) else {
            return Err(io::Error::other("a run that the plan does not have"));
        };
        self.untidy |= place.is_some();
        *place = Some((self.end, u32::try_from(line.len()).unwrap_or(u32::MAX)));
        self.end += line.len() as u64;
        Ok(())
    }

    /// Brings the lines into the order of the runs, if they are in another, and makes sure that they are on the disk.
    ///
    /// # Errors
    /// When the file cannot be rewritten. It then does not change.
    pub fn tidy(mut self) -> io::Result<PathBuf> {
        let mut next = self.head;
        for place in self.places.iter().flatten() {
            self.untidy |= place.0 != next;
            next = place.0 + u64::from(place.1);
        }
        if !self.untidy {
            self.file.sync_all()?;
            return Ok(self.path);
        }
        let partial = self.path.with_extension(format!("partial-{}", std::process::id()));
        let written = self.write_in_order(&partial).and_then(|()| fs::rename(&partial, &self.path));
        if let Err(error) = written {
            // The first error is the one to report.
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
        Ok(self.path)
    }

    fn write_in_order(&mut self, partial: &Path) -> io::Result<()> {
        let mut out = BufWriter::new(File::create(partial)?);
        let mut buffer = Vec::new();
        let head = (0, u32::try_from(self.head).unwrap_or(u32::MAX));
        for &(offset, length) in [Some(head)].iter().chain(&self.places).flatten() {
            buffer.resize(length as usize, 0);
            self.file.seek(SeekFrom::Start(offset))?;
            self.file.read_exact(&mut buffer)?;
            out.write_all(&buffer)?;
        }
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    }
}

/// Reads the records of a file one after the other, so that no more than one is in memory. Damaged lines are ignored and
/// counted.
#[derive(Debug)]
pub struct Records {
    lines: Lines<BufReader<File>>,
    /// Skipped damage.
    pub damage: Damage,
}

impl Records {
    /// Opens a file and reads its manifest.
    ///
    /// # Errors
    /// When there is no file, or it does not begin with a manifest.
    pub fn open(path: &Path) -> Result<(Manifest, Self), ReadError> {
        let mut lines = Lines::new(BufReader::new(File::open(path)?));
        let first = lines.next_line()?.ok_or(ReadError::Empty)?;
        Ok((parse_manifest(&first.text)?, Self { lines, damage: Damage::default() }))
    }
}

impl Iterator for Records {
    type Item = io::Result<Record>;
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = match self.lines.next_line() {
                Ok(line) => line?,
                Err(error) => return Some(Err(error)),
            };
            match parse_record(line.number, &line.text) {
                Ok(record) => return Some(Ok(record)),
                Err(_) if !line.ended => self.damage.torn = true,
                Err(_) => self.damage.lines.push(line.number),
            }
        }
    }
}

/// Lines with their places. Bytes that are no text become replacement characters, which no record has.
#[derive(Debug)]
struct Lines<R> {
    input: R,
    offset: u64,
    number: usize,
}

struct Line {
    text: String,
    offset: u64,
    length: u64,
    number: usize,
    ended: bool,
}

/// No line is longer: a file without line ends must not fill the memory.
const LINE_MAX: u64 = 256 << 20;

impl<R: BufRead> Lines<R> {
    const fn new(input: R) -> Self {
        Self { input, offset: 0, number: 0 }
    }

    fn next_line(&mut self) -> io::Result<Option<Line>> {
        let mut bytes = Vec::new();
        let length = (&mut self.input).take(LINE_MAX).read_until(b'\n', &mut bytes)? as u64;
        if length == 0 {
            return Ok(None);
        }
        let (offset, ended) = (self.offset, bytes.last() == Some(&b'\n'));
        if ended {
            bytes.pop();
        }
        self.offset += length;
        self.number += 1;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Some(Line { text, offset, length, number: self.number, ended }))
    }
}
