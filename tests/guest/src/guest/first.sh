#!/bin/busybox sh
# First process of the guest: mounts the host's root over 9p, lays a writable layer in memory over it, and moves there.
PATH=/bin
/bin/busybox --install -s /bin
. /settings

die() {
    echo "guest: $*"
    sync
    poweroff -f
}

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do
    insmod "$module" || die "a module needed to boot does not load"
done

nine=trans=virtio,version=9p2000.L,msize=512000
# Nothing on the host changes what a guest reads while it runs, so its cache need not be checked.
mount -t 9p -o "ro,$nine,cache=loose" host /host || die "the host's root cannot be mounted"
mount -t tmpfs -o size=90% cover /cover
mkdir /cover/upper /cover/work
mount -t overlay -o lowerdir=/host,upperdir=/cover/upper,workdir=/cover/work root /root || die "no writable root"

mkdir -p "/root/lib/modules/$RELEASE" /root/results
mount --bind "/host$MODULES" "/root/lib/modules/$RELEASE" || die "the kernel's modules cannot be mounted"
mount -t 9p -o "rw,$nine" results /root/results || die "the results cannot be mounted"
# A checkout below one of the places that are covered next shows through.
mkdir /checkout
mount --bind "/root$DIRECTORY" /checkout || die "the working directory cannot be mounted"
for place in tmp run var/tmp; do
    mkdir -p "/root/$place"
    mount -t tmpfs -o size=90%,mode=1777 "${place##*/}" "/root/$place"
done
chmod 755 /root/run
case "$DIRECTORY/" in
/tmp/* | /run/* | /var/tmp/*) mkdir -p "/root$DIRECTORY" && mount --move /checkout "/root$DIRECTORY" ;;
*) umount /checkout ;;
esac
mkdir /root/run/guest
cp /bin/busybox /system /settings /command /root/run/guest/
mount --move /proc /root/proc
mount --move /sys /root/sys
mount --move /dev /root/dev
exec switch_root -c /dev/console /root /run/guest/busybox sh /run/guest/system
die "the new root cannot be entered"
