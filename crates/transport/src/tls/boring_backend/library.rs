//! Calls into BoringSSL that its Rust crate does not offer, and callbacks. This file has all unsafe code of the backend, behind a safe
//! interface.
//!
//! BoringSSL calls back only from within a call made here, on the same thread. The session holds the state of the callbacks ([`Shared`]).

// SAFETY of every call with a pointer out of `Ssl` or `SslContextBuilder`: both own a live object of the library, and `&mut`
// says that nobody else is inside of it. Slices live for the call, and BoringSSL copies what it keeps.
#![allow(unsafe_code)]

use std::{cell::Cell, ffi::c_int, slice, sync::LazyLock};

use boring::{
    error::ErrorStack,
    ex_data::Index,
    ssl::{Ssl, SslContextBuilder, SslRef, SslSession},
};
use boring_sys as ffi;
use foreign_types::{ForeignType, ForeignTypeRef};

use super::state::{Shared, State};
use crate::{
    crypto::{CipherSuite, Secret},
    tls::{Direction, Level},
};

/// Room for a sealed session beside the session; the callback that seals writes a name of 16 bytes there.
const TICKET_OVERHEAD: usize = 16;
/// Context that BoringSSL binds a server's early data to. It is constant: [`Tickets`](crate::tls::rustls_backend::Tickets)
/// compares the parameters that early data depends on.
const EARLY_DATA_CONTEXT: &[u8] = b"tiderace";

static INDEX: LazyLock<Option<Index<Ssl, Shared>>> = LazyLock::new(|| Ssl::new_ex_index().ok());

thread_local! {
    /// Time for the session that is inside the library on this thread, in Unix seconds: the library passes its callback nothing that
    /// identifies a session.
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// Outcome of a step of a handshake.
pub(super) enum Outcome {
    /// The handshake is complete.
    Complete,
    /// More bytes of the peer are needed.
    WantsBytes,
    /// A signature is awaited.
    WantsSignature,
    /// The server refuses early data: the client continues without it.
    EarlyDataRefused,
    /// Failed; the library's reasons.
    Failed(ErrorStack),
}

/// Returns the state attached to a session; every session of this backend has it.
pub(super) fn shared(ssl: &SslRef) -> Option<&Shared> {
    ssl.ex_data((*INDEX)?)
}

/// Makes a context speak QUIC, by the clock of [`NOW`].
pub(super) fn use_quic(context: &mut SslContextBuilder) -> bool {
    // SAFETY: see the top; the table of methods is static.
    unsafe {
        ffi::SSL_CTX_set_current_time_cb(context.as_ptr(), Some(current_time));
        ffi::SSL_CTX_set_quic_method(context.as_ptr(), &raw const QUIC) == 1
    }
}

/// Makes a server's context give this many tickets, sealed by [`State`].
pub(super) fn use_tickets(context: &mut SslContextBuilder, count: usize) {
    // SAFETY: see the top; the table of methods is static.
    unsafe {
        ffi::SSL_CTX_set_num_tickets(context.as_ptr(), count);
        ffi::SSL_CTX_set_ticket_aead_method(context.as_ptr(), &raw const TICKETS);
    }
}

/// Makes a server's context sign by [`State`], in these ways.
pub(super) fn use_signer(context: &mut SslContextBuilder, schemes: &[u16]) -> bool {
    // SAFETY: see the top; the table of methods is static.
    unsafe {
        ffi::SSL_CTX_set_private_key_method(context.as_ptr(), &raw const SIGNER);
        ffi::SSL_CTX_set_signing_algorithm_prefs(context.as_ptr(), schemes.as_ptr(), schemes.len()) == 1
    }
}

/// Signatures that a client takes, as numbers of the TLS registry.
pub(super) fn set_accepted_signatures(context: &mut SslContextBuilder, schemes: &[u16]) -> bool {
    // SAFETY: see the top.
    unsafe { ffi::SSL_CTX_set_verify_algorithm_prefs(context.as_ptr(), schemes.as_ptr(), schemes.len()) == 1 }
}

/// Attaches the state to a session and sets its side, the transport parameters and the use of early data.
pub(super) fn prepare(ssl: &mut Ssl, state: State, parameters: &[u8], early_data: bool) -> bool {
    let Some(index) = *INDEX else { return false };
    let client = state.side == wire::Side::Client;
    ssl.set_ex_data(index, Shared::new(state));
    // SAFETY: see the top.
    unsafe {
        if client {
            ffi::SSL_set_connect_state(ssl.as_ptr());
        } else {
            ffi::SSL_set_accept_state(ssl.as_ptr());
            let context = EARLY_DATA_CONTEXT;
            if ffi::SSL_set_quic_early_data_context(ssl.as_ptr(), context.as_ptr(), context.len()) != 1 {
                return false;
            }
        }
        ffi::SSL_set_early_data_enabled(ssl.as_ptr(), early_data.into());
        // RFC 9001 §8.2 MUST-1: transport parameters are sent
        ffi::SSL_set_quic_transport_params(ssl.as_ptr(), parameters.as_ptr(), parameters.len()) == 1
    }
}

/// Returns whether a session may take or offer early data from here on.
pub(super) fn set_early_data(ssl: &mut Ssl, enabled: bool) {
    // SAFETY: see the top.
    unsafe { ffi::SSL_set_early_data_enabled(ssl.as_ptr(), enabled.into()) }
}

/// Lets a client resume a session. Its bytes come from [`State::on_ticket`], perhaps of another process.
pub(super) fn resume(ssl: &mut Ssl, session: &[u8]) -> bool {
    let Ok(session) = SslSession::from_der(session) else { return false };
    // SAFETY: a session that was read from bytes belongs to no context, so it fits any; the library counts references.
    unsafe { ssl.set_session(&session).is_ok() }
}

/// Gives a session bytes of the peer.
pub(super) fn provide(ssl: &mut Ssl, level: Level, data: &[u8]) -> Result<(), ErrorStack> {
    // SAFETY: see the top.
    match unsafe { ffi::SSL_provide_quic_data(ssl.as_ptr(), number(level), data.as_ptr(), data.len()) } {
        1 => Ok(()),
        _ => Err(ErrorStack::get()),
    }
}

/// Processes the provided bytes, as far as possible, at this time (Unix seconds).
pub(super) fn handshake(ssl: &mut Ssl, now: u64) -> Outcome {
    NOW.set(now);
    loop {
        // SAFETY: see the top.
        let (ret, error) = unsafe {
            let ret = ffi::SSL_do_handshake(ssl.as_ptr());
            (ret, ffi::SSL_get_error(ssl.as_ptr(), ret))
        };
        progress(ssl);
        // SAFETY: see the top.
        if ret == 1 && unsafe { ffi::SSL_in_init(ssl.as_ptr()) } == 0 {
            return Outcome::Complete;
        }
        // With early data the library says that it is done when early data may be sent or read: it has more to do.
        if ret == 1 {
            continue;
        }
        return match error {
            ffi::SSL_ERROR_WANT_READ => Outcome::WantsBytes,
            ffi::SSL_ERROR_WANT_PRIVATE_KEY_OPERATION => Outcome::WantsSignature,
            ffi::SSL_ERROR_EARLY_DATA_REJECTED => Outcome::EarlyDataRefused,
            _ => Outcome::Failed(ErrorStack::get()),
        };
    }
}

/// A client continues after its early data was refused.
pub(super) fn forget_early_data(ssl: &mut Ssl) {
    // SAFETY: see the top; the library has just said that it waits for this.
    unsafe { ffi::SSL_reset_early_data_reject(ssl.as_ptr()) }
}

/// Processes bytes after the handshake.
pub(super) fn post_handshake(ssl: &mut Ssl, now: u64) -> Result<(), ErrorStack> {
    NOW.set(now);
    // SAFETY: see the top.
    match unsafe { ffi::SSL_process_quic_post_handshake(ssl.as_ptr()) } {
        1 => Ok(()),
        _ => Err(ErrorStack::get()),
    }
}

/// The level at which bytes of the peer are due.
pub(super) fn read_level(ssl: &SslRef) -> Level {
    // SAFETY: a getter on a live object.
    level(unsafe { ffi::SSL_quic_read_level(ssl.as_ptr()) })
}

/// Key material for the application.
pub(super) fn export(ssl: &SslRef, out: &mut [u8], label: &[u8], context: Option<&[u8]>) -> bool {
    let (context, used) = (context.unwrap_or_default(), context.is_some());
    // SAFETY: a getter on a live object; the slices live for the call.
    unsafe {
        let (label, label_len) = (label.as_ptr().cast(), label.len());
        let (context, context_len) = (context.as_ptr(), context.len());
        let (out, out_len) = (out.as_mut_ptr(), out.len());
        let ssl = ssl.as_ptr();
        ffi::SSL_export_keying_material(ssl, out, out_len, label, label_len, context, context_len, used.into()) == 1
    }
}

/// The number of the cipher suite that was agreed.
pub(super) fn suite(ssl: &SslRef) -> Option<CipherSuite> {
    CipherSuite::from_number(ssl.current_cipher()?.protocol_id())
}

/// Copies the library's knowledge of the peer to the state.
fn progress(ssl: &SslRef) {
    let Some(shared) = shared(ssl) else { return };
    let (mut parameters, mut len) = (std::ptr::null(), 0);
    // SAFETY: getters on a live object; what they point to lives until the next call into the session.
    let (parameters, accepted) = unsafe {
        ffi::SSL_get_peer_quic_transport_params(ssl.as_ptr(), &raw mut parameters, &raw mut len);
        (bytes(parameters, len), ffi::SSL_early_data_accepted(ssl.as_ptr()) == 1)
    };
    shared.lock().on_progress(parameters, accepted);
}

/// The library's pointer and length as a slice; it may pass no pointer with no bytes.
///
/// # Safety
///
/// When `len` is not 0, `pointer` is valid for that many bytes while the slice is used.
unsafe fn bytes<'a>(pointer: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: as above.
    if len == 0 || pointer.is_null() { &[] } else { unsafe { slice::from_raw_parts(pointer, len) } }
}

fn number(level: Level) -> ffi::ssl_encryption_level_t {
    match level {
        Level::Initial => ffi::ssl_encryption_level_t::ssl_encryption_initial,
        Level::ZeroRtt => ffi::ssl_encryption_level_t::ssl_encryption_early_data,
        Level::Handshake => ffi::ssl_encryption_level_t::ssl_encryption_handshake,
        Level::OneRtt => ffi::ssl_encryption_level_t::ssl_encryption_application,
    }
}

fn level(number: ffi::ssl_encryption_level_t) -> Level {
    match number {
        ffi::ssl_encryption_level_t::ssl_encryption_initial => Level::Initial,
        ffi::ssl_encryption_level_t::ssl_encryption_early_data => Level::ZeroRtt,
        ffi::ssl_encryption_level_t::ssl_encryption_handshake => Level::Handshake,
        _ => Level::OneRtt,
    }
}

// What the library calls. It passes the session that is inside of it, and buffers that live for the call.

static QUIC: ffi::SSL_QUIC_METHOD = ffi::SSL_QUIC_METHOD {
    set_read_secret: Some(set_read_secret),
    set_write_secret: Some(set_write_secret),
    add_handshake_data: Some(add_handshake_data),
    flush_flight: Some(flush_flight),
    send_alert: Some(send_alert),
};

static TICKETS: ffi::SSL_TICKET_AEAD_METHOD = ffi::SSL_TICKET_AEAD_METHOD {
    max_overhead: Some(ticket_overhead),
    seal: Some(seal_ticket),
    open: Some(open_ticket),
};

static SIGNER: ffi::SSL_PRIVATE_KEY_METHOD =
    ffi::SSL_PRIVATE_KEY_METHOD { sign: Some(sign), decrypt: None, complete: Some(complete) };

/// Runs `with` on the state that hangs on the session.
///
/// # Safety
///
/// `ssl` is a live session.
unsafe fn call_back<R>(ssl: *mut ffi::SSL, with: impl FnOnce(&mut State) -> R) -> Option<R> {
    // SAFETY: as above.
    let ssl = unsafe { SslRef::from_ptr(ssl) };
    progress(ssl);
    Some(with(&mut shared(ssl)?.lock()))
}

/// Writes `data` into the library's buffer; `None` without room.
///
/// # Safety
///
/// `out` is valid for writes of `room` bytes, and `written` for one number.
unsafe fn put(data: &[u8], out: *mut u8, written: *mut usize, room: usize) -> Option<()> {
    if data.len() > room {
        return None;
    }
    // SAFETY: as above, and the data is not the library's own, so they do not overlap.
    unsafe {
        out.copy_from_nonoverlapping(data.as_ptr(), data.len());
        *written = data.len();
    }
    Some(())
}

unsafe extern "C" fn current_time(_: *const ffi::SSL, out: *mut ffi::timeval) {
    // SAFETY: the library passes a place for the answer.
    unsafe {
        (*out).tv_sec = NOW.get().cast_signed();
        (*out).tv_usec = 0;
    }
}

unsafe extern "C" fn set_read_secret(
    ssl: *mut ffi::SSL,
    at: ffi::ssl_encryption_level_t,
    cipher: *const ffi::SSL_CIPHER,
    secret: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: see above the tables.
    unsafe { install(ssl, at, Direction::Remote, cipher, bytes(secret, len)) }
}

unsafe extern "C" fn set_write_secret(
    ssl: *mut ffi::SSL,
    at: ffi::ssl_encryption_level_t,
    cipher: *const ffi::SSL_CIPHER,
    secret: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: see above the tables.
    unsafe { install(ssl, at, Direction::Local, cipher, bytes(secret, len)) }
}

/// # Safety
///
/// `ssl` and `cipher` are live.
unsafe fn install(
    ssl: *mut ffi::SSL,
    at: ffi::ssl_encryption_level_t,
    direction: Direction,
    cipher: *const ffi::SSL_CIPHER,
    secret: &[u8],
) -> c_int {
    // SAFETY: as above.
    let suite = CipherSuite::from_number(unsafe { ffi::SSL_CIPHER_get_protocol_id(cipher) });
    let (Some(suite), Some(secret)) = (suite, Secret::new(secret)) else { return 0 };
    // SAFETY: as above.
    unsafe { call_back(ssl, |state| state.on_secret(level(at), direction, suite, secret)) }.is_some().into()
}

unsafe extern "C" fn add_handshake_data(
    ssl: *mut ffi::SSL,
    at: ffi::ssl_encryption_level_t,
    data: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: see above the tables.
    unsafe { call_back(ssl, |state| state.on_write(level(at), bytes(data, len))) }.is_some().into()
}

unsafe extern "C" fn flush_flight(_: *mut ffi::SSL) -> c_int {
    1
}

unsafe extern "C" fn send_alert(ssl: *mut ffi::SSL, _: ffi::ssl_encryption_level_t, alert: u8) -> c_int {
    // SAFETY: see above the tables.
    unsafe { call_back(ssl, |state| state.alert = Some(alert)) }.is_some().into()
}

unsafe extern "C" fn ticket_overhead(_: *mut ffi::SSL) -> usize {
    TICKET_OVERHEAD
}

unsafe extern "C" fn seal_ticket(
    ssl: *mut ffi::SSL,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
    session: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: see above the tables. No bytes mean no ticket.
    unsafe {
        let name = call_back(ssl, |state| state.name_session(bytes(session, len))).flatten();
        let name = name.as_ref().map_or(&[][..], |name| &name[..]);
        put(name, out, out_len, room).is_some().into()
    }
}

unsafe extern "C" fn open_ticket(
    ssl: *mut ffi::SSL,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
    ticket: *const u8,
    len: usize,
) -> ffi::ssl_ticket_aead_result_t {
    // SAFETY: see above the tables.
    let opened = unsafe {
        let session = call_back(ssl, |state| state.open_ticket(bytes(ticket, len))).flatten();
        session.and_then(|session| put(&session, out, out_len, room))
    };
    match opened {
        Some(()) => ffi::ssl_ticket_aead_result_t::ssl_ticket_aead_success,
        None => ffi::ssl_ticket_aead_result_t::ssl_ticket_aead_ignore_ticket,
    }
}

unsafe extern "C" fn sign(
    ssl: *mut ffi::SSL,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
    scheme: u16,
    message: *const u8,
    len: usize,
) -> ffi::ssl_private_key_result_t {
    // SAFETY: see above the tables.
    unsafe { signed(call_back(ssl, |state| state.sign(scheme, bytes(message, len))), out, out_len, room) }
}

unsafe extern "C" fn complete(
    ssl: *mut ffi::SSL,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
) -> ffi::ssl_private_key_result_t {
    // SAFETY: see above the tables.
    unsafe { signed(call_back(ssl, State::poll_signature), out, out_len, room) }
}

/// # Safety
///
/// As for [`put`].
unsafe fn signed(
    answer: Option<Option<Result<Vec<u8>, String>>>,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
) -> ffi::ssl_private_key_result_t {
    match answer {
        Some(None) => ffi::ssl_private_key_result_t::ssl_private_key_retry,
        // SAFETY: as above.
        Some(Some(Ok(signature))) if unsafe { put(&signature, out, out_len, room) }.is_some() => {
            ffi::ssl_private_key_result_t::ssl_private_key_success
        }
        _ => ffi::ssl_private_key_result_t::ssl_private_key_failure,
    }
}
