# Nodes on block devices of the test's own making: sourced by tests that put something between a node and its disk.
# The caller is in an empty directory; what is left there when it ends may be thrown away.

PORT=7070
. "$(dirname "${BASH_SOURCE[0]}")/processes.sh"

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
    [ "$status" = 0 ] || dmesg | tail -n 5 >&2
    mountpoint -q mnt && umount mnt
    for name in "${maps[@]}"; do dmsetup resume --noudevsync "$name" 2>/dev/null; done
    end_all
    for name in $(printf '%s\n' "${maps[@]}" | tac); do dmsetup remove --noudevsync --noudevrules --force "$name" 2>/dev/null; done
    [ ${#loops[@]} -eq 0 ] || losetup --detach "${loops[@]}" 2>/dev/null
    exit "$status"
}
trap cleanup EXIT

mkdir mnt
for module in ublk_drv loop dm-mod; do modprobe $module 2>/dev/null || true; done
