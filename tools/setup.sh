#!/bin/bash
# Installs the Debian packages that building, testing or booting the guest needs and that this machine lacks.
# Says what it installs and why; does nothing (and asks for no privilege) when everything is there.
# Packages come from the machine's own apt sources, which it never edits.
#
#   tools/setup.sh [build|dist|test|guest|bench|bench-vm|fuzz|soak]...      (default: build, test and guest)
set -euo pipefail

# A package on each line, with its reason.
packages_build="
gcc             linking
libc6-dev       linking
clang           libublk's kernel bindings
libclang-dev    libublk's kernel bindings
cmake           the verbs shim
protobuf-compiler etcd's client
libprotobuf-dev etcd's client
pkg-config      finding native libraries
make            the targets of the Makefile
git             which files are the project's, for lint
"
packages_test="
qemu-utils      qemu-io and qemu-img, NBD clients
libnbd-bin      nbdinfo and nbdcopy, NBD clients
python3-libnbd  fault-by-fault NBD sessions
openssl         certificates of somebody else's for NBD over TLS
fio             verified load
iproute2        network namespaces and veth
nftables        partitions between namespaces
e2fsprogs       ext4 on a volume
xfsprogs        xfs on a volume
util-linux      mount, losetup, fallocate, unshare
procps          watching the processes of a cluster
curl            the conductor's HTTP interface, as a person uses it
valgrind        counting the hot path's instructions
etcd-server     several conductors, whose tests run an etcd of their own
"
packages_dist="
fio             NBD load, for the profile that a build is optimized with
"
packages_fuzz="
g++             libFuzzer
"
packages_bench="
nbdkit          a peer to measure against
qemu-system-common QEMU quorum, the other peer
"
packages_bench_vm="
nbdkit          NBD servers in the guest
mdadm           RAID 1 in the guest, a peer to measure against
nvme-cli        connecting to NVMe over TCP, below it
nbd-client      connecting to NBD, below it
drbd-utils      DRBD in the guest, the other peer
"
packages_soak="
btrfs-progs     Btrfs on a volume, in the guest
cryptsetup-bin  dm-crypt on a volume, in the guest
lvm2            LVM over volumes, in the guest
mdadm           RAID 1 over volumes, in the guest
"
packages_guest="
qemu-system-x86 the guest machine
busybox-static  the guest's first process
kmod            module dependencies
zstd            compressed modules
xz-utils        compressed modules
dpkg            unpacking kernel packages
debian-archive-keyring verifying kernel packages
e2fsprogs       ext4 in the guest
xfsprogs        xfs in the guest
fio             verified load in the guest
dmsetup         faulty disks in the guest
iproute2        soft-RoCE devices in the guest
libibverbs1     RDMA in the guest, loaded at run time
ibverbs-providers RDMA in the guest: soft-RoCE
librdmacm1      RDMA connections in the guest
"

fail() {
    echo "setup: $*" >&2
    exit 1
}

wanted=""
[ $# -gt 0 ] || set -- build test guest
for group in "$@"; do
    case "$group" in
    build) wanted+="$packages_build" ;;
    test) wanted+="$packages_test" ;;
    guest) wanted+="$packages_guest" ;;
    bench) wanted+="$packages_bench" ;;
    bench-vm) wanted+="$packages_bench_vm" ;;
    dist) wanted+="$packages_dist" ;;
    fuzz) wanted+="$packages_fuzz" ;;
    soak) wanted+="$packages_soak" ;;
    *) fail "unknown group '$group': use build, dist, test, guest, bench, bench-vm, fuzz or soak" ;;
    esac
done

command -v cargo >/dev/null || [ ! -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ] || PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
command -v cargo >/dev/null ||
    fail "cargo is missing, and Debian 12 packages one that is too old: install Rust 1.95 or newer with rustup, then run this again."

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
    fail "this machine has no apt: install the tools that tools/setup.sh lists by hand, or use Debian 12."

installed=" $(dpkg-query -W -f='${db:Status-Abbrev}${Package} ' 2>/dev/null | sed 's/\(^\| \)ii \+/ /g') "
declare -A missing=()
while read -r package reason; do
    [ -n "$package" ] || continue
    [[ "$installed" == *" $package "* ]] || missing[$package]="$reason"
done <<<"$wanted"
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null || { [ -t 0 ] && command -v sudo >/dev/null; } ||
        fail "these packages are missing and neither root nor sudo is at hand: ${!missing[*]}"
    as_root=(sudo)
fi

list=""
for package in $(printf '%s\n' "${!missing[@]}" | sort); do
    list+="${list:+, }$package (${missing[$package]})"
done
echo "setup: installing $list"

log=$(mktemp)
refusing=""
quiet_etcd=""
unit=/etc/systemd/system/etcd.service
policy=/usr/sbin/policy-rc.d
end() {
    rm -f "$log"
    [ -z "$refusing" ] || "${as_root[@]}" rm -f "$refusing"
    # It came to nothing.
    [ -z "$quiet_etcd" ] || command -v etcd >/dev/null || "${as_root[@]}" rm -f "$unit"
}
trap end EXIT

# Debian's package would run an etcd from now on, on port 2379: only its program is wanted. Under systemd a masked unit is not started, now
# or at boot; elsewhere the package asks policy-rc.d, and its script is taken out of the runlevels below.
if [ -n "${missing[etcd-server]:-}" ] && [ ! -e "$unit" ] && [ ! -L "$unit" ] && [ ! -e /lib/systemd/system/etcd.service ]; then
    quiet_etcd=yes
    "${as_root[@]}" mkdir -p "${unit%/*}"
    "${as_root[@]}" ln -s /dev/null "$unit"
    if [ ! -d /run/systemd/system ] && [ ! -e "$policy" ] && [ ! -L "$policy" ]; then
        refusing=$policy
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
        "${as_root[@]}" chmod 755 "$policy"
    fi
fi
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" \
        </dev/null >"$log" 2>&1
}
install() { apt install --no-install-recommends -y "$@" "${!missing[@]}"; }
# The lists are fetched again only when what they say is not enough.
if ! install --no-remove; then
    apt update || { tail -n 20 "$log" >&2; fail "apt-get update failed."; }
    if ! install --no-remove; then
        # A package of another suite is in the way. It may go only if it is one of those wanted here, for it comes back at once.
        plan=$(LC_ALL=C apt-get -s install --no-install-recommends "${!missing[@]}" 2>/dev/null | awk '$1 == "Remv" { print $2 }')
        for package in $plan; do
            [[ "$wanted" =~ (^|$'\n')"$package"[[:space:]] ]] || { tail -n 20 "$log" >&2; fail "$package is in the way: installing would remove it."; }
            echo "setup: replacing $package by the version of this machine's sources"
            missing[$package]=replaced
        done
        apt remove -y $plan && install || { tail -n 20 "$log" >&2; fail "apt-get install failed."; }
    fi
fi
if [ -n "$quiet_etcd" ]; then
    [ -d /run/systemd/system ] || "${as_root[@]}" update-rc.d etcd disable >/dev/null 2>&1 || true
    echo "setup: etcd is installed as a program; no etcd is started, now or at boot (if you want one: systemctl unmask etcd)"
fi
