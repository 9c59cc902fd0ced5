//! A client's tickets in a file, for the next process.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use transport::tls::{MemoryTickets, Ticket, TicketStore};

use crate::tickets_rate::Writes;

/// RFC 1035 §2.3.4: no name of a server is longer.
const LONGEST_NAME: usize = 255;
const HEAD: &str = "tiderace tickets 1";
/// Tickets of a server that are kept.
const PER_SERVER: usize = 4;
/// Tickets that are kept in all.
const ALL: usize = 256;
/// A longer ticket is not kept, in bytes: servers decide how long theirs are, and all of them have to fit into the file.
const LONGEST: usize = 16 << 10;
/// Size in bytes above which a file is no ticket file: [`ALL`] tickets of [`LONGEST`] bytes, and their names, take less.
const LARGEST: u64 = 16 << 20;

/// Keeps tickets in a file: the latest four of each server, and 256 in all, of at most 16 KiB each. Processes may share it; each ticket is
/// used by one of them, once.
///
/// Only serializable tickets go into the file, those of BoringSSL (`transport::tls::boring_backend`); tickets of rustls are kept in memory.
/// Only the owner can read the file, because a holder of a ticket can resume the session.
///
/// Each added or used ticket rewrites the file, during a handshake. If that fails, the handshake continues, and a warning has the cause. Of
/// each server eight tickets are written at once and one every 10 s after that, so that no server can make a client write without end;
/// further tickets are kept in memory.
#[derive(Debug)]
pub struct FileTickets {
    path: PathBuf,
    here: MemoryTickets,
    writes: Mutex<Writes>,
}

/// A line of the file.
struct Entry {
    server_name: String,
    ticket: Vec<u8>,
}

impl FileTickets {
    /// Uses the file at `path`, which need not exist; its folder has to. Beside it is a file with `.lock` after the name, which
    /// is empty and stays.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let tickets = Self { path: path.into(), here: MemoryTickets::default(), writes: Mutex::default() };
        tickets.change(|_| Some(()))?;
        Ok(tickets)
    }

    /// Reads, changes and writes the file under a lock. It is written only after a change.
    fn change<R>(&self, change: impl FnOnce(&mut Vec<Entry>) -> Option<R>) -> io::Result<Option<R>> {
        let lock = private().create(true).truncate(false).open(self.beside(".lock"))?;
        lock.lock()?;
        let mut entries = read(&self.path)?;
        let done = change(&mut entries);
        if done.is_some() {
            self.write(&entries)?;
        }
        Ok(done)
    }

    fn write(&self, entries: &[Entry]) -> io::Result<()> {
        let new = self.beside(".new");
        // What a run that was interrupted has left, or somebody else has put there: its rights, and where it leads, are not ours.
        let _ = fs::remove_file(&new);
        let mut file = private().create_new(true).open(&new)?;
        let mut text = format!("{HEAD}\n");
        for Entry { server_name, ticket } in entries {
            text.push_str(server_name);
            text.push(' ');
            text.extend(ticket.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit));
            text.push('\n');
        }
        file.write_all(text.as_bytes())?;
        // A reader finds the old file or the new one, never a part.
        fs::rename(new, &self.path)
    }

    fn beside(&self, what: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(what);
        name.into()
    }

    fn warn<R>(&self, result: io::Result<Option<R>>) -> Option<R> {
        result.unwrap_or_else(|error| {
            tracing::warn!(path = %self.path.display(), %error, "the file of tickets cannot be used");
            None
        })
    }
}

impl TicketStore for FileTickets {
    fn insert(&self, server_name: &str, ticket: Ticket) {
        let is_word = !server_name.is_empty() && !server_name.contains(char::is_whitespace);
        let Some(bytes) = ticket.as_bytes().filter(|_| is_word).map(<[u8]>::to_vec) else {
            return self.here.insert(server_name, ticket);
        };
        if bytes.len() > LONGEST || server_name.len() > LONGEST_NAME {
            return;
        }
        if !self.writes.lock().unwrap_or_else(PoisonError::into_inner).allow(server_name, Instant::now()) {
            return self.here.insert(server_name, ticket);
        }
        self.warn(self.change(|entries| {
            entries.push(Entry { server_name: server_name.to_owned(), ticket: bytes });
            let mut more = entries.iter().filter(|e| e.server_name == server_name).count().saturating_sub(PER_SERVER);
            entries.retain(|entry| {
                let goes = more > 0 && entry.server_name == server_name;
                more -= usize::from(goes);
                !goes
            });
            let more = entries.len().saturating_sub(ALL);
            entries.drain(..more);
            Some(())
        }));
    }

    fn take(&self, server_name: &str) -> Option<Ticket> {
        if let Some(ticket) = self.here.take(server_name) {
            return Some(ticket);
        }
        let taken = self.warn(self.change(|entries| {
            // The latest is the most likely to be good still.
            let place = entries.iter().rposition(|entry| entry.server_name == server_name)?;
            Some(entries.remove(place).ticket)
        }));
        taken.map(Ticket::from_bytes)
    }
}

/// To be written, and read by its owner alone.
fn private() -> OpenOptions {
    let mut options = File::options();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Reads a file of tickets; no entries when there is none. Lines that cannot be read are left out.
fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let text = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
        // A pipe or a device could be read for ever.
        Ok(metadata) if metadata.len() > LARGEST || !metadata.is_file() => return Err(foreign()),
        Ok(_) => fs::read_to_string(path)?,
    };
    // What a machine leaves that has lost its power: it is still ours.
    if HEAD.starts_with(&text) {
        return Ok(Vec::new());
    }
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        return Err(foreign());
    }
    let entries = lines.filter_map(|line| {
        let (server_name, digits) = line.split_once(' ')?;
        let digits: Vec<u8> = digits.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
        let (pairs, rest) = digits.as_chunks();
        let ticket = pairs.iter().map(|[high, low]| high << 4 | low).collect();
        rest.is_empty().then(|| Entry { server_name: server_name.to_owned(), ticket })
    });
    Ok(entries.collect())
}

fn foreign() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "this is no file of tickets")
}

fn digit(value: u8) -> char {
    char::from_digit(value.into(), 16).unwrap_or('0')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that goes with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tiderace-tickets-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn bytes(ticket: Option<Ticket>) -> Option<Vec<u8>> {
        ticket.map(|ticket| ticket.as_bytes().unwrap().to_vec())
    }

    #[test]
    fn two_users_of_a_file_get_each_ticket_once_the_latest_first() {
        let folder = Folder::new("once");
        let path = folder.0.join("tickets");
        let one = FileTickets::open(&path).unwrap();
        for n in 0..7 {
            one.insert("a.test", Ticket::from_bytes(vec![n, 0xf0]));
        }
        one.insert("b.test", Ticket::from_bytes(Vec::new()));
        let other = FileTickets::open(&path).unwrap();
        assert_eq!(bytes(other.take("a.test")), Some(vec![6, 0xf0]));
        assert_eq!(bytes(one.take("a.test")), Some(vec![5, 0xf0]));
        assert_eq!(bytes(other.take("b.test")), Some(Vec::new()));
        assert_eq!(bytes(one.take("b.test")), None);
        assert_eq!(bytes(one.take("a.test")), Some(vec![4, 0xf0]));
        assert_eq!(bytes(one.take("a.test")), Some(vec![3, 0xf0]));
        assert_eq!(bytes(one.take("a.test")), None, "four of a server are kept");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    /// Each write replaces the file by a new one.
    #[cfg(unix)]
    #[test]
    fn a_server_with_tickets_without_end_makes_few_writes() {
        use std::os::unix::fs::MetadataExt;
        let folder = Folder::new("endless");
        let path = folder.0.join("tickets");
        let tickets = FileTickets::open(&path).unwrap();
        let file = || fs::metadata(&path).unwrap().ino();
        let begun = Instant::now();
        let (mut before, mut writes) = (file(), 0);
        for n in 0..5_000_u32 {
            tickets.insert("a.test", Ticket::from_bytes(n.to_be_bytes().to_vec()));
            let now = file();
            writes += u64::from(now != before);
            before = now;
        }
        let most = 8 + begun.elapsed().as_secs() / 10 + 1;
        assert!(writes <= most, "{writes} writes, at most {most} are allowed");
        // The latest serves this process, and another server is not held back.
        assert_eq!(bytes(tickets.take("a.test")), Some(4_999_u32.to_be_bytes().to_vec()));
        tickets.insert("b.test", Ticket::from_bytes(vec![1]));
        assert_eq!(bytes(FileTickets::open(&path).unwrap().take("b.test")), Some(vec![1]));
    }

    #[test]
    fn the_file_is_bounded_and_opaque_tickets_stay_in_memory() {
        let folder = Folder::new("bound");
        let path = folder.0.join("tickets");
        let tickets = FileTickets::open(&path).unwrap();
        for n in 0..ALL + 20 {
            tickets.insert(&format!("{n}.test"), Ticket::from_bytes(vec![1; 10]));
        }
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1 + ALL);
        assert!(tickets.take("0.test").is_none() && tickets.take("20.test").is_some());
        tickets.insert("c.test", Ticket::new(5_u8));
        assert!(FileTickets::open(&path).unwrap().take("c.test").is_none());
        assert_eq!(tickets.take("c.test").and_then(Ticket::into_inner::<u8>), Some(5));
    }

    #[test]
    fn what_is_broken_is_left_out_and_what_is_foreign_is_left_alone() {
        let folder = Folder::new("broken");
        let path = folder.0.join("tickets");
        fs::write(&path, format!("{HEAD}\na.test 0g\nb.test 123\nword\nc.test 0aF0\na.test 01")).unwrap();
        let tickets = FileTickets::open(&path).unwrap();
        assert_eq!(bytes(tickets.take("c.test")), Some(vec![0x0a, 0xf0]));
        assert_eq!(bytes(tickets.take("b.test")), None);
        assert_eq!(bytes(tickets.take("a.test")), Some(vec![1]));
        fs::write(&path, "somebody's diary").unwrap();
        assert!(FileTickets::open(&path).is_err());
        tickets.insert("a.test", Ticket::from_bytes(vec![1]));
        assert!(tickets.take("a.test").is_none());
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's diary");
        assert!(FileTickets::open(folder.0.join("no/such/folder")).is_err());
    }

    /// Servers choose the length of their tickets; a file above its limit would never be recognized again.
    #[test]
    fn enormous_tickets_do_not_make_the_file_unusable() {
        let folder = Folder::new("enormous");
        let path = folder.0.join("tickets");
        let tickets = FileTickets::open(&path).unwrap();
        for length in [60_000, LONGEST + 1] {
            tickets.insert("a.test", Ticket::from_bytes(vec![1; length]));
        }
        assert_eq!(bytes(tickets.take("a.test")), None);
        // A file as large as it can be.
        let digits = "ab".repeat(LONGEST);
        let names = (0..ALL).map(|n| format!("{n:0>255} {digits}\n"));
        fs::write(&path, std::iter::once(format!("{HEAD}\n")).chain(names).collect::<String>()).unwrap();
        assert!(fs::metadata(&path).unwrap().len() < LARGEST);
        tickets.insert("a.test", Ticket::from_bytes(vec![1; LONGEST]));
        assert!(FileTickets::open(&path).unwrap().take("a.test").is_some());
    }

    #[test]
    fn a_file_that_was_cut_off_is_still_ours() {
        let folder = Folder::new("cut");
        let path = folder.0.join("tickets");
        let whole = format!("{HEAD}\na.test 0102\n");
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let tickets = FileTickets::open(&path).unwrap();
            tickets.insert("b.test", Ticket::from_bytes(vec![7]));
            assert_eq!(bytes(tickets.take("b.test")), Some(vec![7]), "{length} bytes");
        }
    }

    /// In a folder that others can write to.
    #[cfg(unix)]
    #[test]
    fn what_stands_in_the_place_of_the_new_file_is_not_written_to() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = Folder::new("planted");
        let (path, victim) = (folder.0.join("tickets"), folder.0.join("victim"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, folder.0.join("tickets.new")).unwrap();
        let tickets = FileTickets::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        // Left behind, for all to read.
        fs::write(folder.0.join("tickets.new"), "").unwrap();
        fs::set_permissions(folder.0.join("tickets.new"), fs::Permissions::from_mode(0o666)).unwrap();
        tickets.insert("a.test", Ticket::from_bytes(vec![1]));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // No place to write, as on a full disk: the handshake continues without, and the old file stays whole.
        fs::create_dir(folder.0.join("tickets.new")).unwrap();
        tickets.insert("a.test", Ticket::from_bytes(vec![2]));
        assert!(tickets.take("a.test").is_none(), "what cannot be taken out of the file is not used");
        fs::remove_dir(folder.0.join("tickets.new")).unwrap();
        assert_eq!(bytes(tickets.take("a.test")), Some(vec![1]));
    }

    #[test]
    fn users_at_the_same_time_lose_nothing_and_get_nothing_twice() {
        let folder = Folder::new("crowd");
        let path = folder.0.join("tickets");
        let taken: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let users: Vec<_> = (0..8_u8)
                .map(|user| {
                    let path = &path;
                    scope.spawn(move || {
                        let tickets = FileTickets::open(path).unwrap();
                        let mut taken = Vec::new();
                        for n in 0..20 {
                            tickets.insert("a.test", Ticket::from_bytes(vec![user, n]));
                            taken.extend(bytes(tickets.take("a.test")));
                        }
                        taken
                    })
                })
                .collect();
            users.into_iter().flat_map(|user| user.join().unwrap()).collect()
        });
        let distinct: std::collections::BTreeSet<_> = taken.iter().collect();
        assert_eq!(distinct.len(), taken.len());
        let left = fs::read_to_string(&path).unwrap().lines().count() - 1;
        assert!(left <= PER_SERVER && !taken.is_empty(), "{} taken, {left} left", taken.len());
    }
}
