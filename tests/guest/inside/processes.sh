# A conductor and nodes as processes of a script that sources this: begun, waited for, ended. None is left when the script ends.
# The caller is in an empty directory, and sets before:
#   PORT   where the conductor listens, on loopback; node N on that plus N. 0: each on any free one

. "$(dirname "${BASH_SOURCE[0]}")/healthy.sh"
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
TRINE=$(realpath "${TRINE:-$repo/target/release/trine}")
LOG_WRITES=$repo/target/debug/log-writes
WITNESS=$repo/target/debug/witness
export LC_ALL=C TRINE_CONDUCTOR TRINE_KEY_FILE=$PWD/key TRINE_DIR=$PWD
declare -A pids=()
# Of each node's buffers.
NODE_MEMORY=128M
# Seconds; what is waited for takes a few, on a machine with nothing else to do.
LIMIT=300

fail() {
    echo "$(basename "$0"): FAILED: $*" >&2
    timeout 5 "$TRINE" status >&2 || true
    tail -n 8 ./*.log "$TRINE_DIR"/attached/*.log >&2 || true
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
conductor() { # conductor STATE: until it is ready; sets TRINE_CONDUCTOR
    begin conductor "$TRINE" conductor run --listen "127.0.0.1:$PORT" --store "redb:$PWD/$1"
    ready conductor
    TRINE_CONDUCTOR=$(awk '$1 == "ready" { print $2 }' conductor.out)
}
node() { # node N DISK OPTION…
    begin "n$1" "$TRINE" node run --node "$1" --listen "127.0.0.1:$((PORT == 0 ? 0 : PORT + $1))" --disk "$2" \
        --control-socket "$PWD/n$1.sock" --memory "$NODE_MEMORY" "${@:3}"
}
attach() { # attach VOLUME OPTION…: sets DEV
    DEV=$(timeout $LIMIT "$TRINE" attach "$@") || fail "attach: $?"
}
end_all() { # of a script that ends, well or not
    timeout 20 "$TRINE" detach db --force >/dev/null 2>&1 || true
    kill -9 "${pids[@]}" 2>/dev/null || true
    { wait; } 2>/dev/null
}

head -c 32 /dev/urandom | od -An -tx1 -v | tr -d ' \n' >key
