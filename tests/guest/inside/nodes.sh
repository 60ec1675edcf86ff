# Nodes on block devices of the test's own making: sourced by tests that put something between a node and its disk.
# The caller is in an empty directory; what is left there when it ends may be thrown away.

. "$(dirname "${BASH_SOURCE[0]}")/healthy.sh"
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
TRINE=$(realpath "${TRINE:-$repo/target/release/trine}")
LOG_WRITES=$repo/target/debug/log-writes
WITNESS=$repo/target/debug/witness
export LC_ALL=C TRINE_CONDUCTOR=127.0.0.1:7070 TRINE_KEY_FILE=$PWD/key TRINE_DIR=$PWD
declare -A pids=()
# Seconds; what is waited for takes a few, on a machine with nothing else to do.
LIMIT=300

fail() {
    echo "$(basename "$0"): FAILED: $*" >&2
    timeout 5 "$TRINE" status >&2 || true
    tail -n 8 ./*.log "$TRINE_DIR"/attached/*.log >&2 || true
    dmesg | tail -n 5 >&2
    exit 1
}
begin() { # begin NAME COMMAND…: in the background
    local name=$1
    shift
    : >"$name.out"
    "$@" >"$name.out" 2>>"$name.log" &
    pids[$name]=$!
}
ready() { # ready NAME…: until each says so
    local name until=$((SECONDS + LIMIT))
    for name in "$@"; do
        until grep -q '^ready' "$name.out"; do
            kill -0 "${pids[$name]}" 2>/dev/null || fail "$name has ended"
            [ "$SECONDS" -lt "$until" ] || fail "$name is not ready"
            sleep 0.1
        done
    done
}
end() { # end SIGNAL NAME…
    local signal=$1 name
    shift
    for name in "$@"; do kill "-$signal" "${pids[$name]}"; done
    for name in "$@"; do
        { wait "${pids[$name]}"; } 2>/dev/null || [ "$signal" = 9 ] || fail "$name ended with $?"
        unset "pids[$name]"
    done
}
conductor() { # conductor STATE
    begin conductor "$TRINE" conductor run --listen $TRINE_CONDUCTOR --store "redb:$PWD/$1"
}
node() { # node N DISK OPTION…
    begin "n$1" "$TRINE" node run --node "$1" --listen "127.0.0.1:$((7100 + $1))" --disk "$2" \
        --control-socket "$PWD/n$1.sock" --memory 128M "${@:3}"
}
attach() { # attach VOLUME: sets DEV
    DEV=$(timeout $LIMIT "$TRINE" attach "$1") || fail "attach: $?"
}
# A disk in memory, sparse: sets LOOP.
disk() { # disk FILE SIZE
    truncate -s "$2" "$1"
    LOOP=$(losetup --find --show "$1")
    loops+=("$LOOP")
}
loops=()
mapped() { # mapped NAME TABLE: there is no udev here that would make its node, or remove one that is left of another device
    rm -f "/dev/mapper/$1"
    dmsetup create "$1" --noudevsync --noudevrules --table "$2"
    [ -b "/dev/mapper/$1" ] || dmsetup mknodes "$1"
    [ -b "/dev/mapper/$1" ] || fail "no /dev/mapper/$1"
    maps+=("$1")
}
maps=()
unmap() { # unmap NAME…
    local name
    for name in "$@"; do
        # A process that has just ended may still have it.
        for _ in $(seq 50); do
            dmsetup remove --noudevsync --noudevrules "$name" 2>/dev/null && break
            sleep 0.1
        done
        ! dmsetup info "$name" >/dev/null 2>&1 || fail "$name is in use"
    done
}
cleanup() {
    local status=$? name
    set +e
    mountpoint -q mnt && umount mnt
    for name in "${maps[@]}"; do dmsetup resume --noudevsync "$name" 2>/dev/null; done
    timeout 20 "$TRINE" detach db --force >/dev/null 2>&1
    kill -9 "${pids[@]}" 2>/dev/null
    wait
    for name in $(printf '%s\n' "${maps[@]}" | tac); do dmsetup remove --noudevsync --noudevrules --force "$name" 2>/dev/null; done
    [ ${#loops[@]} -eq 0 ] || losetup --detach "${loops[@]}" 2>/dev/null
    exit "$status"
}
trap cleanup EXIT

head -c 32 /dev/urandom | od -An -tx1 -v | tr -d ' \n' >key
mkdir mnt
for module in ublk_drv loop dm-mod; do modprobe $module 2>/dev/null || true; done
