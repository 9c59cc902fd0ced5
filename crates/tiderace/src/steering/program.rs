//! The program of kernel steering, as instructions.
//!
//! 1. A datagram with a load balancer's header goes to the worker of its hint, at the process that serves.
//! 2. A short header with a connection ID goes to the socket of its process and worker, if that process has given it one.
//! 3. Everything else goes to a worker of the process that serves: to the one that the connection ID names, or by the kernel's hash.
//!
//! Long headers never go to an older process: a client has chosen the connection IDs of its first packets, and any bytes may stand there.

use std::os::fd::{AsRawFd, BorrowedFd};

use wire::proxy;

use super::bpf::Instruction;
use crate::reuseport::ShardPlace;

/// UDP's header, with which the data of the program begins.
const UDP_HEADER: i32 = 8;
/// Offset of the kernel's hash in the program's context (struct `sk_reuseport_md`).
const CONTEXT_HASH: i16 = 32;
/// Stack slots, behind the frame pointer: bytes of the packet, and the index into the table.
const BYTES: i16 = -8;
const INDEX: i16 = -16;
/// `bpf_skb_load_bytes` and `bpf_sk_select_reuseport`.
const LOAD_BYTES: i32 = 26;
const SELECT: i32 = 82;
/// SK_PASS. Without a selection the kernel takes its hash.
const PASS: i32 = 1;

/// Registers with a meaning of their own; calls leave them as they are.
const CONTEXT: u8 = 6;
const WORD: u8 = 7;
const WORKER: u8 = 8;
const GENERATION: u8 = 9;
const FRAME: u8 = 10;

/// Places of the steered datagrams in connection IDs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Byte of the worker, and the length of the IDs.
    pub(super) shard: ShardPlace,
    /// Byte of the generation.
    pub(super) generation: usize,
}

/// Places of a process in the table. There is room for all workers that a byte can name, because a later process may have more.
const STRIDE: u32 = 256;
/// Number of places in the table: those of all generations, and those of the process that serves.
pub(super) const PLACES: u32 = 257 * STRIDE;

/// Place in the table of the socket that the serving process reads.
pub(super) fn shared(worker: u8) -> u32 {
    256 * STRIDE + u32::from(worker)
}

/// Place in the table of an older process' socket.
pub(super) fn own(generation: u8, worker: u8) -> u32 {
    u32::from(generation) * STRIDE + u32::from(worker)
}

/// Target of a jump.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Proxied,
    ProxiedV6,
    Long,
    ByHint,
    ByHash,
    Shared,
    Pass,
}

/// Instructions, and the jumps whose distance is not known yet.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn push(&mut self, code: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction { code, registers: source << 4 | destination, offset, immediate });
    }

    /// Copies a register.
    fn copy(&mut self, to: u8, from: u8) {
        self.push(0xbf, to, from, 0, 0);
    }

    fn set(&mut self, to: u8, value: i32) {
        self.push(0xb7, to, 0, 0, value);
    }

    fn add(&mut self, to: u8, value: i32) {
        self.push(0x07, to, 0, 0, value);
    }

    fn multiply(&mut self, to: u8, value: i32) {
        self.push(0x27, to, 0, 0, value);
    }

    fn remainder(&mut self, to: u8, value: i32) {
        self.push(0x97, to, 0, 0, value);
    }

    /// Loads a byte that [`packet`](Self::packet) has brought to the stack.
    fn byte(&mut self, to: u8, at: i16) {
        self.push(0x71, to, FRAME, BYTES + at, 0);
    }

    fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x05, 0, 0, 0, 0);
    }

    /// Jumps if a register is equal to a value.
    fn if_equal(&mut self, register: u8, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x15, register, 0, 0, value);
    }

    fn if_different(&mut self, register: u8, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x55, register, 0, 0, value);
    }

    /// Jumps if a register is at least a value, without sign.
    fn if_at_least(&mut self, register: u8, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x35, register, 0, 0, value);
    }

    fn if_any_bit(&mut self, register: u8, bits: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x45, register, 0, 0, bits);
    }

    fn call(&mut self, function: i32) {
        self.push(0x85, 0, 0, 0, function);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    /// Copies bytes of the payload to the stack; a packet that has none there goes by the hash.
    fn packet(&mut self, at: usize, len: i32) {
        self.copy(1, CONTEXT);
        self.set(2, UDP_HEADER + i32::try_from(at).expect("an index in a header"));
        self.copy(3, FRAME);
        self.add(3, BYTES.into());
        self.set(4, len);
        self.call(LOAD_BYTES);
        self.if_different(0, 0, Label::ByHash);
    }

    /// Selects the socket at the index in a register; register 0 is zero if there is one.
    fn select(&mut self, table: BorrowedFd<'_>, index: u8) {
        self.push(0x63, FRAME, index, INDEX, 0);
        self.copy(1, CONTEXT);
        // A load of 64 bits takes two instructions; source 1 says that the value is the descriptor of a table.
        self.push(0x18, 2, 1, 0, table.as_raw_fd());
        self.push(0, 0, 0, 0, 0);
        self.copy(3, FRAME);
        self.add(3, INDEX.into());
        self.set(4, 0);
        self.call(SELECT);
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let (_, to) = self.labels.iter().find(|(other, _)| *other == label).expect("every label has a place");
            self.code[at].offset = i16::try_from(*to - at - 1).expect("a short program that jumps forward");
        }
        self.code
    }
}

/// Program for a table, where the process that serves has `count` workers.
pub(super) fn assemble(table: BorrowedFd<'_>, layout: Layout, count: u8) -> Vec<Instruction> {
    let count = i32::from(count);
    let (place, id_len) = layout.shard;
    let id_len = i32::try_from(id_len).expect("an ID has at most 20 bytes");
    let mut a = Assembler::default();
    a.copy(CONTEXT, 1);
    a.packet(0, 4);
    a.push(0x61, WORD, FRAME, BYTES, 0);
    // From network order.
    a.push(0xdc, WORD, 0, 0, 32);
    // One byte would not do: a short header may begin with it where the peer greases the QUIC bit (RFC 9287).
    a.if_equal(WORD, proxy::FIRST_WORD.cast_signed(), Label::Proxied);
    a.push(0x77, WORD, 0, 0, 24);
    // RFC 8999 §5: the highest bit tells long headers from short ones.
    a.if_any_bit(WORD, 0x80, Label::Long);

    // The worker's byte, and the generation's.
    a.packet(1 + place, 1);
    a.byte(WORKER, 0);
    a.if_at_least(WORKER, count, Label::ByHash);
    a.packet(1 + layout.generation, 1);
    a.byte(GENERATION, 0);
    a.multiply(GENERATION, STRIDE.cast_signed());
    // Adds a register.
    a.push(0x0f, GENERATION, WORKER, 0, 0);
    a.select(table, GENERATION);
    a.if_equal(0, 0, Label::Pass);
    a.jump(Label::Shared);

    a.label(Label::Long);
    // RFC 8999 §5.1: the version and the length of the destination ID come before that.
    a.packet(5, 1);
    a.byte(WORD, 0);
    a.if_different(WORD, id_len, Label::ByHash);
    a.packet(6 + place, 1);
    a.byte(WORKER, 0);
    a.if_at_least(WORKER, count, Label::ByHash);
    a.jump(Label::Shared);

    a.label(Label::Proxied);
    // Where the hint is follows from the header's length.
    let [len4, len6] = proxy::HINTED_LENGTHS.map(i32::from);
    a.packet(15, 1);
    a.byte(WORD, 0);
    a.if_different(WORD, len4, Label::ProxiedV6);
    a.packet(proxy::HINT_PLACES[0], 1);
    a.jump(Label::ByHint);
    a.label(Label::ProxiedV6);
    a.if_different(WORD, len6, Label::ByHash);
    a.packet(proxy::HINT_PLACES[1], 1);
    a.label(Label::ByHint);
    a.byte(WORKER, 0);
    a.remainder(WORKER, count);
    a.jump(Label::Shared);

    a.label(Label::ByHash);
    a.push(0x61, WORKER, CONTEXT, CONTEXT_HASH, 0);
    a.remainder(WORKER, count);

    a.label(Label::Shared);
    a.add(WORKER, shared(0).cast_signed());
    a.select(table, WORKER);
    a.if_equal(0, 0, Label::Pass);
    // A process with more workers has ended, and the one before has yet to notice.
    a.set(WORKER, shared(0).cast_signed());
    a.select(table, WORKER);
    a.label(Label::Pass);
    a.set(0, PASS);
    a.push(0x95, 0, 0, 0, 0);
    a.finish()
}
