# Process 1 of the guest once it stands on its root: what an init would set up, then the one command, then the end.
# There is no udevd: device nodes come from devtmpfs, links under /dev only from the programs that make them.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
busybox=/run/guest/busybox
. /run/guest/settings

mkdir -p /dev/pts /dev/shm /dev/mqueue /run/lock /var/lock 2>/dev/null
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
ln -sfn /proc/self/fd /dev/fd
ln -sfn /proc/self/fd/0 /dev/stdin
ln -sfn /proc/self/fd/1 /dev/stdout
ln -sfn /proc/self/fd/2 /dev/stderr
$busybox hostname guest
$busybox ip link set lo up
ulimit -n 65536
cd "$DIRECTORY" 2>/dev/null || cd /

echo "$TOKEN started"
$busybox env -i PATH="$PATH" HOME=/root USER=root SHELL=/bin/bash TERM=dumb LANG=C.UTF-8 \
    TRINE_GUEST="$SERIES" TRINE_RESULTS=/results \
    $busybox setsid /bin/bash /run/guest/command </dev/null
status=$?

# From here on the console belongs to the sentinel alone.
$busybox dmesg -n 1
$busybox dmesg >/results/dmesg.log
# What was recorded may be much; a file system whose device hangs is not waited for.
sync &
for _ in $($busybox seq 600); do
    kill -0 $! 2>/dev/null || break
    $busybox sleep 0.1
done
echo "$TOKEN status $status."
$busybox sleep 0.2
$busybox poweroff -n -f
