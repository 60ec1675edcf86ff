# Soft-RoCE between network namespaces: n1, n2, n3 and target, each with a device of its own, behind one bridge. Sourced by what runs a
# cluster over RDMA, beside processes.sh.
#   192.0.2.100  this namespace, for the conductor      192.0.2.1 … 3  the nodes      192.0.2.4  target

make_spaces() {
    local module space at=0
    for module in veth bridge rdma_rxe ib_uverbs rdma_ucm; do
        modprobe "$module" || fail "no module $module"
    done
    mkdir -p /dev/infiniband
    ip link add br0 type bridge
    ip address add 192.0.2.100/24 dev br0
    ip link set br0 up
    for space in n1 n2 n3 target; do
        at=$((at + 1))
        ip netns add "$space"
        ip link add "port$at" type veth peer name "veth$at"
        ip link set "veth$at" netns "$space"
        ip link set "port$at" master br0
        ip link set "port$at" up
        ip -n "$space" address add "192.0.2.$at/24" dev "veth$at"
        ip -n "$space" link set "veth$at" up
        ip -n "$space" link set lo up
        # Names of RDMA devices are the whole machine's, not a namespace's.
        in_space "$space" rdma link add "cluster$at" type rxe netdev "veth$at" || fail "no rxe on veth$at"
    done
}
# Not `ip netns exec`, which gives a process mounts of its own: a target would hold for good what is mounted on the device that it serves.
in_space() { # in_space NAME COMMAND…
    nsenter --net="/run/netns/$1" "${@:2}"
}
rdma_conductor() { # rdma_conductor STATE: sets TRINE_CONDUCTOR
    begin conductor "$TRINE" conductor run --listen "192.0.2.100:$PORT" --plaintext --store "redb:$PWD/$1"
    ready conductor
    TRINE_CONDUCTOR=192.0.2.100:$PORT
}
rdma_node() { # rdma_node N DISK OPTION…
    local n=$1
    begin "n$n" nsenter --net="/run/netns/n$n" "$TRINE" node run --node "$n" --listen "192.0.2.$n:7100,rdma:192.0.2.$n" --plaintext \
        --disk "$2" --control-socket "$PWD/n$n.sock" --memory "$NODE_MEMORY" "${@:3}"
}
rdma_attach() { # rdma_attach VOLUME OPTION…: sets DEV
    DEV=$(timeout $LIMIT nsenter --net=/run/netns/target "$TRINE" attach "$@") || fail "attach: $?"
}
