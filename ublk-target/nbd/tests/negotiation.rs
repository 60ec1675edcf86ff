//! Conversations before the first command, byte by byte.

mod common;
use common::*;
use conductor_model::Bytes;
use nbd_session::{Closed, Export, Limits, MAX_OPTIONS, Tls};

const SIZE: u64 = 10 << 20;
/// HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, FAST_ZERO.
const FLAGS: u16 = 0b1001_0110_1101;

const ERR_UNSUP: u32 = 0x8000_0001;
const ERR_INVALID: u32 = 0x8000_0003;
const ERR_TLS_REQD: u32 = 0x8000_0005;
const ERR_UNKNOWN: u32 = 0x8000_0006;
const ERR_TOO_BIG: u32 = 0x8000_0009;

fn server() -> Server {
    Server::new(export(SIZE), Limits::default(), 1 << 20)
}

/// A server whose client has sent its flags.
fn greeted() -> Server {
    let mut server = server();
    server.feed(&3u32.to_be_bytes());
    server.said();
    server
}

fn kind_of(reply: &[u8]) -> u32 {
    u32::from_be_bytes(*reply[12..].first_chunk().expect("a reply"))
}

fn size_and_flags(flags: u16) -> Vec<u8> {
    [&SIZE.to_be_bytes()[..], &flags.to_be_bytes()].concat()
}

#[test]
fn the_server_speaks_first() {
    assert_eq!(server().said(), b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn an_old_client_names_its_export_and_gets_zeroes_unless_it_does_not_want_them() {
    for (flags, zeroes) in [(0u32, 124), (1, 124), (3, 0)] {
        let mut server = server();
        server.feed(&flags.to_be_bytes());
        server.said();
        assert_eq!(server.ask(&option(1, b"vol")), [size_and_flags(FLAGS), vec![0; zeroes]].concat());
        assert!(server.session.is_transmitting());
    }
}

#[test]
fn a_name_that_cannot_be_refused_ends_the_session() {
    let mut server = greeted();
    server.feed(&option(1, b"other"));
    assert_eq!(server.closed, Some(Closed::UnknownExport));
    assert_eq!(server.said(), b"");
    assert!(server.session.is_finished());
}

#[test]
fn list_names_and_describes_the_export() {
    let told = [string("vol"), b"a volume".to_vec()].concat();
    assert_eq!(greeted().ask(&option(3, &[])), [option_reply(3, 2, &told), option_reply(3, 1, &[])].concat());
    assert_eq!(kind_of(&greeted().ask(&option(3, b"x"))), ERR_INVALID);
}

#[test]
fn info_and_go_tell_what_was_asked_for() {
    for (go, name) in [(6, "vol"), (7, "vol"), (7, "")] {
        let mut server = greeted();
        let reply = server.ask(&option(go, &info(name, &[1, 2, 3, 77])));
        let expected = [
            option_reply(go, 3, &[&[0, 0][..], &size_and_flags(FLAGS)].concat()),
            option_reply(go, 3, b"\0\x01vol"),
            option_reply(go, 3, b"\0\x02a volume"),
            option_reply(go, 3, &[0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]),
            option_reply(go, 1, &[]),
        ];
        assert_eq!(reply, expected.concat());
        assert_eq!(server.session.is_transmitting(), go == 7);
    }
    let bare = greeted().ask(&option(6, &info("vol", &[])));
    let expected = [option_reply(6, 3, &[&[0, 0][..], &size_and_flags(FLAGS)].concat()), option_reply(6, 1, &[])];
    assert_eq!(bare, expected.concat());
}

#[test]
fn a_wrong_info_is_refused_and_the_client_may_try_again() {
    let mut server = greeted();
    assert_eq!(kind_of(&server.ask(&option(7, &info("other", &[])))), ERR_UNKNOWN);
    assert_eq!(kind_of(&server.ask(&option(7, b"\0\0\0\x09vol\0\0"))), ERR_INVALID);
    assert_eq!(kind_of(&server.ask(&option(7, b"\0\0\0\x03vol\0\x01"))), ERR_INVALID);
    assert_eq!(kind_of(&server.ask(&option(7, b""))), ERR_INVALID);
    server.feed(&option(7, &info("vol", &[])));
    assert!(server.session.is_transmitting());
}

#[test]
fn flags_say_what_is_there() {
    let flags_of = |export: Export, structured: bool| {
        let mut server = Server::new(export, Limits::default(), 1 << 20);
        server.feed(&3u32.to_be_bytes());
        if structured {
            server.feed(&option(8, &[]));
        }
        server.said();
        let reply = server.ask(&option(1, b"vol"));
        u16::from_be_bytes([reply[8], reply[9]])
    };
    let plain = || Export::new("vol", "", Bytes(SIZE)).expect("short");
    assert_eq!(flags_of(plain(), false), FLAGS & !(1 << 11));
    assert_eq!(flags_of(export(SIZE), true), FLAGS | 1 << 7);
    let mut read_only = export(SIZE);
    read_only.read_only = true;
    assert_eq!(flags_of(read_only, true), 0b1_1000_1111);
}

#[test]
fn options_of_other_servers_are_refused_politely() {
    let mut server = greeted();
    for number in [4, 5, 11, 12, 0, u32::MAX] {
        let reply = server.ask(&option(number, b"some data"));
        assert_eq!(kind_of(&reply), ERR_UNSUP, "option {number}");
        assert_eq!(reply[8..12], number.to_be_bytes());
    }
    assert_eq!(server.ask(&option(8, &[])), option_reply(8, 1, &[]));
}

#[test]
fn an_option_with_too_much_data_is_refused_and_skipped() {
    for len in [32769, 200_000] {
        let mut server = greeted();
        let reply = server.ask(&option(10, &vec![b'I'; len]));
        assert_eq!(kind_of(&reply), ERR_TOO_BIG);
        assert_eq!(server.ask(&option(8, &[])), option_reply(8, 1, &[]));
    }
    let mut server = greeted();
    assert_eq!(kind_of(&server.ask(&option(99, &[7; 32768]))), ERR_UNSUP);
}

#[test]
fn metadata_contexts_are_listed_and_selected() {
    let context = |option, id: u32| option_reply(option, 4, &[&id.to_be_bytes()[..], b"base:allocation"].concat());
    let ack = |option| option_reply(option, 1, &[]);
    let mut server = greeted();
    assert_eq!(kind_of(&server.ask(&option(10, &contexts("vol", &["base:allocation"])))), ERR_INVALID);
    for queries in [&[][..], &["base:"], &["x:y", "base:allocation", "base:"]] {
        assert_eq!(server.ask(&option(9, &contexts("vol", queries))), [context(9, 0), ack(9)].concat());
    }
    assert_eq!(server.ask(&option(9, &contexts("vol", &["qemu:", "base"]))), ack(9));
    server.ask(&option(8, &[]));
    for queries in [&[][..], &["base:"], &["base:allocation2"]] {
        assert_eq!(server.ask(&option(10, &contexts("vol", queries))), ack(10));
    }
    let selected = server.ask(&option(10, &contexts("", &["x:", "base:allocation"])));
    assert_eq!(selected, [context(10, 1), ack(10)].concat());
    assert_eq!(kind_of(&server.ask(&option(10, &contexts("other", &["base:allocation"])))), ERR_UNKNOWN);
    assert_eq!(kind_of(&server.ask(&option(10, &contexts("vol", &["a"])[..12]))), ERR_INVALID);
    selects_nothing(&mut server);
}

/// A failed attempt took the selection with it.
fn selects_nothing(server: &mut Server) {
    server.ask(&option(7, &info("vol", &[])));
    let reply = server.ask(&command(STATUS, 0, 1, 0, 512));
    assert_eq!(reply, error_chunk(1, true, 22, "invalid request", None));
}

#[test]
fn a_selection_that_is_too_long_takes_the_one_before_with_it() {
    let mut server = greeted();
    server.ask(&option(8, &[]));
    server.ask(&option(10, &contexts("vol", &["base:allocation"])));
    assert_eq!(kind_of(&server.ask(&option(10, &vec![0; 40 << 10]))), ERR_TOO_BIG);
    selects_nothing(&mut server);
}

#[test]
fn abort_is_acknowledged_before_the_end() {
    let mut server = greeted();
    assert_eq!(server.ask(&option(2, b"")), option_reply(2, 1, &[]));
    assert_eq!(server.closed, Some(Closed::Disconnected));
    assert!(server.session.is_finished());
}

#[test]
fn a_client_that_talks_nonsense_is_left() {
    let cases: [(&[u8], Closed); 3] = [
        (&7u32.to_be_bytes(), Closed::HandshakeFlags(7)),
        (b"\0\0\0\x03IHAVEOPS\0\0\0\x03\0\0\0\0", Closed::OptionMagic(0x4948_4156_454f_5053)),
        (b"\0\0\0\0IHAVEOPT\0\0\0\x03\0\0\0\0", Closed::NotFixedNewstyle(3)),
    ];
    for (words, why) in cases {
        let mut server = server();
        server.feed(words);
        assert_eq!(server.closed, Some(why));
        assert!(server.session.is_finished());
    }
    let mut server = greeted();
    for _ in 0..=MAX_OPTIONS {
        server.feed(&option(3, &[]));
    }
    assert_eq!(server.closed, Some(Closed::TooManyOptions));
}

#[test]
fn strings_that_the_protocol_cannot_carry_are_refused_before_a_client_comes() {
    let long = "x".repeat(4097);
    assert!(Export::new(&long, "", Bytes(0)).is_err());
    assert!(Export::new("vol", &long, Bytes(0)).is_err());
    assert!(Export::new(&long[..4096], "", Bytes(0)).is_ok());
}

/// A server whose client has sent its flags, over TLS or not.
fn greeted_with(tls: Tls) -> Server {
    let mut server = Server::with_tls(export(SIZE), Limits::default(), 1 << 20, tls);
    server.feed(&3u32.to_be_bytes());
    server.said();
    server
}

/// The client has its TLS.
fn secured(tls: Tls) -> Server {
    let mut server = greeted_with(tls);
    assert_eq!(server.ask(&option(5, &[])), option_reply(5, 1, &[]));
    assert!(server.wants_tls && server.session.next_recv(&server.arena).is_none(), "nothing more is read in clear");
    server.session.secured();
    server
}

#[test]
fn tls_begins_when_it_is_asked_for_and_answered_and_all_is_negotiated_anew() {
    assert_eq!(kind_of(&greeted().ask(&option(5, &[]))), ERR_UNSUP, "where there is none");
    for tls in [Tls::Optional, Tls::Required] {
        let mut server = greeted_with(tls);
        assert_eq!(kind_of(&server.ask(&option(5, b"x"))), ERR_INVALID);
        let mut server = secured(tls);
        assert_eq!(kind_of(&server.ask(&option(5, &[]))), ERR_INVALID, "once");
        assert_eq!(server.ask(&option(1, b"vol")), size_and_flags(FLAGS), "as if it had just come");
        assert!(server.session.is_transmitting());
    }
    let mut server = greeted_with(Tls::Optional);
    server.ask(&option(8, &[]));
    server.ask(&option(10, &contexts("vol", &["base:allocation"])));
    server.ask(&option(5, &[]));
    server.session.secured();
    let set = option(10, &contexts("vol", &["base:allocation"]));
    assert_eq!(kind_of(&server.ask(&set)), ERR_INVALID, "structured replies were agreed upon in clear");
    assert_eq!(server.ask(&option(1, b"vol")), size_and_flags(FLAGS), "without DF");
}

#[test]
fn where_tls_is_required_nothing_is_told_and_nobody_served_before_it() {
    let (go, long) = (info("vol", &[]), vec![0; 40 << 10]);
    for (asked, data) in
        [(3, &[][..]), (6, &go), (7, &go), (8, &[]), (9, &[]), (10, &[]), (11, &[]), (77, b"x"), (77, &long)]
    {
        let mut server = greeted_with(Tls::Required);
        assert_eq!(kind_of(&server.ask(&option(asked, data))), ERR_TLS_REQD, "option {asked}");
        assert!(!server.session.is_transmitting() && server.closed.is_none());
    }
    let mut server = greeted_with(Tls::Required);
    assert_eq!(server.ask(&option(1, b"vol")), b"");
    assert_eq!(server.closed, Some(Closed::InClear));
    let mut server = greeted_with(Tls::Required);
    assert_eq!(server.ask(&option(2, &[])), option_reply(2, 1, &[]), "a goodbye is one");
    assert_eq!(server.closed, Some(Closed::Disconnected));
    // Optional means that.
    let mut server = greeted_with(Tls::Optional);
    server.ask(&option(7, &info("vol", &[])));
    assert!(server.session.is_transmitting());
}

#[test]
fn what_is_said_in_clear_behind_the_wish_for_tls_is_never_taken_for_said_over_it() {
    for more in [option(7, &info("vol", &[])), b"x".to_vec()] {
        let mut server = greeted_with(Tls::Required);
        server.feed(&[option(5, &[]), more].concat());
        assert_eq!(server.closed, Some(Closed::AheadOfTls));
        assert!(!server.wants_tls && server.session.is_finished());
    }
}

#[test]
fn what_begins_tls_or_ends_the_session_means_the_same_with_too_much_data() {
    for len in [1, 32768, 32769, 200_000] {
        for tls in [Tls::Off, Tls::Optional, Tls::Required] {
            let data = vec![0; len];
            let mut server = greeted_with(tls);
            let refused = kind_of(&server.ask(&option(5, &data)));
            let right = match tls {
                Tls::Off if len > 32768 => ERR_TOO_BIG,
                Tls::Off => ERR_UNSUP,
                Tls::Optional | Tls::Required => ERR_INVALID,
            };
            assert_eq!(refused, right, "{len} bytes, {tls:?}");
            assert!(!server.wants_tls && server.closed.is_none(), "it goes on");
            assert_eq!(server.ask(&option(2, &data)), option_reply(2, 1, &[]), "{len} bytes, {tls:?}");
            assert_eq!(server.closed, Some(Closed::Disconnected));
        }
    }
    let mut server = secured(Tls::Required);
    assert_eq!(kind_of(&server.ask(&option(5, &[0; 32769]))), ERR_INVALID, "once");
}

#[test]
fn a_session_that_gets_no_tls_is_over() {
    let mut server = greeted_with(Tls::Required);
    server.ask(&option(5, &[]));
    server.session.close();
    server.session.secured();
    server.turn();
    assert_eq!(server.closed, Some(Closed::Local));
    assert!(server.session.is_finished());
}
