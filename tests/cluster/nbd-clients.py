# Run by nbdsh (`h` is its handle): libnbd's calls one by one, with and without structured replies, good ones and bad ones.
import errno
import os

EXPORT = os.environ["NBD_EXPORT"]
MIB = 1 << 20


def fresh(structured):
    n = nbd.NBD()
    n.set_request_structured_replies(structured)
    n.add_meta_context("base:allocation")
    n.set_strict_mode(0)  # the server is to refuse, not the library
    n.connect_uri(h.get_uri())
    return n


def fails(want, f, *a, **k):
    try:
        f(*a, **k)
    except nbd.Error as e:
        assert e.errnum == want, (e, want)
        return
    raise AssertionError("did not fail")


def transmission(structured):
    n = fresh(structured)
    size = n.get_size()
    n.pwrite(b"x" * 5000000, 12345)
    assert bytes(n.pread(5000000, 12345)) == b"x" * 5000000
    assert n.pread(32 * MIB, 0)[12345:12350] == b"xxxxx"
    fails(errno.EINVAL, n.pread, 512, size)
    fails(errno.ENOSPC, n.pwrite, b"1" * 512, size - 1)
    fails(errno.EINVAL, n.trim, 512, size)
    fails(errno.ENOSPC, n.zero, 512, size)
    fails(errno.EINVAL, n.cache, 512, 0)
    fails(errno.EINVAL, n.pwrite, b"1" * 5000, 0, nbd.CMD_FLAG_DF)
    fails(errno.ENOTSUP, n.zero, 4096, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
    n.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_FUA)
    n.pwrite(b"abc", 1, nbd.CMD_FLAG_FUA)
    assert bytes(n.pread(5, 0)) == b"\0abc\0"
    if structured:
        assert bytes(n.pread(MIB, MIB // 2, nbd.CMD_FLAG_DF)) == bytes(n.pread(MIB, MIB // 2))
        fails(errno.EOVERFLOW, n.pread, MIB + 1, 0, nbd.CMD_FLAG_DF)
        n.trim(16 * MIB, 32 * MIB)
        n.pwrite(b"data", 40 * MIB + 5)
        hole, data = nbd.STATE_HOLE | nbd.STATE_ZERO, 0
        for flags, want in (
            (0, [8 * MIB - 100, hole, 4096, data, 8 * MIB - 4096, hole]),
            (nbd.CMD_FLAG_REQ_ONE, [8 * MIB - 100, hole]),
        ):
            got = []
            n.block_status(16 * MIB - 100, 32 * MIB + 100, lambda *a: got.append(a) and 0 or 0, flags)
            assert got[0][2] == want, got
        assert n.can_df()
    else:
        fails(errno.EINVAL, n.pread, 512, 0, nbd.CMD_FLAG_DF)
    n.flush()
    n.shutdown()


def options():
    n = nbd.NBD()
    n.set_full_info(True)
    n.set_opt_mode(True)
    n.set_export_name("nope")
    n.connect_uri(h.get_uri())
    n.set_export_name("nope")
    fails(errno.ENOENT, n.opt_info)
    fails(errno.ENOENT, n.opt_go)
    n.set_export_name(EXPORT)
    names = []
    n.opt_list(lambda name, about: names.append(name) and 0 or 0)
    assert names == [EXPORT], names
    n.opt_info()
    assert n.get_block_size(0) == 1
    n.opt_go()
    assert bytes(n.pread(5, 0))[1:4] == b"abc"
    n.shutdown()
    n = nbd.NBD()
    n.set_opt_mode(True)
    n.connect_uri(h.get_uri())
    n.opt_abort()


transmission(True)
transmission(False)
options()
