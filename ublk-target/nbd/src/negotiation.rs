//! The option phase: what client and server agree on before the first command.
//!
//! One call per option; the answer goes to the output. Options that are not known, and those that come later (extended headers), are
//! refused in the way that lets a client go on without them. With TLS all that was agreed is forgotten: it was said in clear, by
//! whomever. Where TLS is required nothing is answered before it but that (the protocol's FORCEDTLS).

use crate::export::Export;
use crate::fault::Closed;
use crate::limits::{MAX_OPTIONS, MAX_PAYLOAD, MAX_STRING};
use crate::output::Output;
use crate::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, BASE_NAMESPACE, EXPORT_NAME_ZEROES, Fields, GREETING, OPTION, OPTION_REPLY,
    handshake, info, opt, rep,
};
use conductor_model::BLOCK;

/// Smallest block: any byte range is accepted.
const MIN_BLOCK: u32 = 1;

/// Whether a session may or has to be over TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tls {
    /// It cannot.
    #[default]
    Off,
    /// Whoever asks for it has it.
    Optional,
    /// In clear nobody is served, nor told what there is.
    Required,
}

/// What was agreed so far.
#[derive(Default)]
pub(crate) struct Negotiation {
    tls: Tls,
    /// It is over TLS.
    secure: bool,
    fixed_newstyle: bool,
    no_zeroes: bool,
    options: u32,
    /// Replies to reads come in chunks.
    pub(crate) structured: bool,
    /// `base:allocation` was selected, block status may be asked.
    pub(crate) allocation: bool,
}

/// What comes after an option.
pub(crate) enum Next {
    Option,
    Commands,
    /// The stream goes on in TLS, once what is queued is sent.
    Tls,
    /// What is queued is still sent.
    Goodbye,
}

/// The server's first words.
pub(crate) fn greet(out: &mut Output) {
    out.small(&GREETING.to_be_bytes());
    out.small(&OPTION.to_be_bytes());
    out.small(&(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
}

impl Negotiation {
    pub(crate) fn new(tls: Tls) -> Self {
        Self { tls, ..Self::default() }
    }

    /// TLS has begun: what the client said before counts for nothing but that it is one of today's, and how often it asked.
    pub(crate) fn secured(&mut self) {
        (self.secure, self.structured, self.allocation) = (true, false, false);
    }

    /// Nothing but the way to TLS is open.
    fn waits_for_tls(&self) -> bool {
        self.tls == Tls::Required && !self.secure
    }

    /// The client's first word.
    pub(crate) fn client_flags(&mut self, flags: u32) -> Result<(), Closed> {
        let (fixed, no_zeroes) = (u32::from(handshake::FIXED_NEWSTYLE), u32::from(handshake::NO_ZEROES));
        if flags & !(fixed | no_zeroes) != 0 {
            return Err(Closed::HandshakeFlags(flags));
        }
        self.fixed_newstyle = flags & fixed != 0;
        self.no_zeroes = flags & no_zeroes != 0;
        Ok(())
    }

    /// Counts an option, and refuses those that this client cannot know.
    pub(crate) fn admit(&mut self, option: u32) -> Result<(), Closed> {
        self.options += 1;
        if self.options > MAX_OPTIONS {
            return Err(Closed::TooManyOptions);
        }
        if !self.fixed_newstyle && option != opt::EXPORT_NAME {
            return Err(Closed::NotFixedNewstyle(option));
        }
        Ok(())
    }

    /// An option whose data is not even looked at.
    pub(crate) fn too_big(&mut self, option: u32, out: &mut Output) -> Result<Next, Closed> {
        match option {
            opt::ABORT => return Ok(abort(out)),
            opt::EXPORT_NAME => return Err(Closed::UnknownExport),
            opt::STARTTLS if self.tls != Tls::Off => refuse(out, option, rep::ERR_INVALID, TLS_ONCE),
            _ if self.waits_for_tls() => refuse(out, option, rep::ERR_TLS_REQD, TLS_FIRST),
            _ => refuse(out, option, rep::ERR_TOO_BIG, "the option's data is too long"),
        }
        // One that fails takes back what was chosen before, too.
        if option == opt::SET_META_CONTEXT {
            self.allocation = false;
        }
        Ok(Next::Option)
    }

    /// An option with all its data.
    pub(crate) fn option(
        &mut self,
        export: &Export,
        option: u32,
        data: &[u8],
        out: &mut Output,
    ) -> Result<Next, Closed> {
        match option {
            opt::ABORT => return Ok(abort(out)),
            opt::STARTTLS if self.tls != Tls::Off => {
                if self.secure || !data.is_empty() {
                    refuse(out, option, rep::ERR_INVALID, TLS_ONCE);
                    return Ok(Next::Option);
                }
                reply(out, option, rep::ACK, &[]);
                return Ok(Next::Tls);
            }
            opt::EXPORT_NAME if self.waits_for_tls() => return Err(Closed::InClear),
            _ if self.waits_for_tls() => refuse(out, option, rep::ERR_TLS_REQD, TLS_FIRST),
            opt::EXPORT_NAME => return self.export_name(export, data, out),
            opt::LIST | opt::STRUCTURED_REPLY if !data.is_empty() => {
                refuse(out, option, rep::ERR_INVALID, "this option has no data");
            }
            opt::LIST => {
                let name = export.name().as_bytes();
                reply(out, option, rep::SERVER, &[&length(name), name, export.description().as_bytes()]);
                reply(out, option, rep::ACK, &[]);
            }
            opt::STRUCTURED_REPLY => {
                self.structured = true;
                reply(out, option, rep::ACK, &[]);
            }
            opt::INFO | opt::GO => {
                if self.info(export, option, data, out) && option == opt::GO {
                    return Ok(Next::Commands);
                }
            }
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta_context(export, option, data, out),
            _ => refuse(out, option, rep::ERR_UNSUP, "this server does not know the option"),
        }
        Ok(Next::Option)
    }

    fn export_name(&self, export: &Export, name: &[u8], out: &mut Output) -> Result<Next, Closed> {
        if !export.is_called(name) {
            return Err(Closed::UnknownExport);
        }
        out.small(&export.size.0.to_be_bytes());
        out.small(&export.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.small(&[0; EXPORT_NAME_ZEROES]);
        }
        Ok(Next::Commands)
    }

    /// True if the client was told all about the export.
    fn info(&self, export: &Export, option: u32, data: &[u8], out: &mut Output) -> bool {
        let Some((name, wanted)) = parse_info(data) else {
            refuse(out, option, rep::ERR_INVALID, "the lengths in the option do not add up");
            return false;
        };
        if !export.is_called(name) {
            refuse(out, option, rep::ERR_UNKNOWN, "there is no such export");
            return false;
        }
        let wants = |kind: u16| wanted.chunks_exact(2).any(|item| item == kind.to_be_bytes());
        let tell = |out: &mut Output, kind: u16, fields: &[&[u8]]| {
            reply(out, option, rep::INFO, &[&kind.to_be_bytes(), &fields.concat()]);
        };
        let flags = export.flags(self.structured).to_be_bytes();
        tell(out, info::EXPORT, &[&export.size.0.to_be_bytes(), &flags]);
        if wants(info::NAME) {
            tell(out, info::NAME, &[export.name().as_bytes()]);
        }
        if wants(info::DESCRIPTION) && !export.description().is_empty() {
            tell(out, info::DESCRIPTION, &[export.description().as_bytes()]);
        }
        if wants(info::BLOCK_SIZE) {
            let sizes = [MIN_BLOCK, PREFERRED_BLOCK, MAX_PAYLOAD].map(u32::to_be_bytes);
            tell(out, info::BLOCK_SIZE, &[sizes.as_flattened()]);
        }
        reply(out, option, rep::ACK, &[]);
        true
    }

    fn meta_context(&mut self, export: &Export, option: u32, data: &[u8], out: &mut Output) {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            self.allocation = false; // every attempt starts anew, even one that fails
            if !self.structured {
                return refuse(out, option, rep::ERR_INVALID, "structured replies come first");
            }
        }
        let Some((name, queries)) = parse_meta_context(data) else {
            return refuse(out, option, rep::ERR_INVALID, "the lengths in the option do not add up");
        };
        if !export.is_called(name) {
            return refuse(out, option, rep::ERR_UNKNOWN, "there is no such export");
        }
        let mut queries = Queries(Fields(queries)).peekable();
        let everything = !set && queries.peek().is_none();
        // A namespace alone is a question about what there is, and selects nothing.
        if everything || queries.any(|query| query == BASE_ALLOCATION || (!set && query == BASE_NAMESPACE)) {
            self.allocation |= set;
            let id = if set { BASE_ALLOCATION_ID } else { 0 };
            reply(out, option, rep::META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION]);
        }
        reply(out, option, rep::ACK, &[]);
    }
}

const TLS_FIRST: &str = "this server serves nobody without TLS";
const TLS_ONCE: &str = "TLS begins once, and this option has no data";

/// What a client had best use: a block of the store.
#[allow(clippy::cast_possible_truncation, reason = "a constant, 4096")]
const PREFERRED_BLOCK: u32 = BLOCK as u32;

/// The strings at the end of a metadata context option, checked before.
struct Queries<'a>(Fields<'a>);

impl<'a> Iterator for Queries<'a> {
    type Item = &'a [u8];
    fn next(&mut self) -> Option<&'a [u8]> {
        self.0.string()
    }
}

/// Name and wanted kinds of information of INFO and GO.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let wanted = usize::from(fields.u16()?);
    (fields.0.len() == 2 * wanted && name.len() <= MAX_STRING).then_some((name, fields.0))
}

/// Name and queries of the metadata context options.
fn parse_meta_context(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    let queries = fields.0;
    for _ in 0..count {
        if fields.string()?.len() > MAX_STRING {
            return None;
        }
    }
    (fields.is_empty() && name.len() <= MAX_STRING).then_some((name, queries))
}

/// Whatever else the client says: this is its goodbye.
fn abort(out: &mut Output) -> Next {
    reply(out, opt::ABORT, rep::ACK, &[]);
    Next::Goodbye
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

fn reply(out: &mut Output, option: u32, kind: u32, fields: &[&[u8]]) {
    let len: usize = fields.iter().map(|field| field.len()).sum();
    out.small(&OPTION_REPLY.to_be_bytes());
    out.small(&option.to_be_bytes());
    out.small(&kind.to_be_bytes());
    out.small(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    for field in fields {
        out.small(field);
    }
}

fn refuse(out: &mut Output, option: u32, error: u32, message: &str) {
    reply(out, option, error, &[message.as_bytes()]);
}
