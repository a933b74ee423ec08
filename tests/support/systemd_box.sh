#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# systemd as process 1 of namespaces of its own, over a copy-on-write view of this machine: nothing outside changes.
#   systemd_box.sh GROUP FOLDER    FOLDER/units are its units, FOLDER/model lies at /opt/model, FOLDER/files at /, and
# this checkout at /opt/checkout, as units do not see one in /tmp or /var/tmp.
# GROUP is the name of a control group that the caller makes sure is new, and removes.
set -euo pipefail
group=$1 folder=$2
if [ "${3:-}" != inside ]; then
    for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
        if [ -e $hierarchy/cgroup.procs ]; then
            mkdir $hierarchy/"$group"
            echo $$ > $hierarchy/"$group"/cgroup.procs
        fi
    done
    exec unshare --mount --pid --fork --kill-child --uts --ipc --cgroup "$0" "$group" "$folder" inside
fi
mount --make-rprivate /
box=$folder/box root=$folder/box/root
mkdir -p "$box"
mount -t tmpfs tmpfs "$box"
mkdir "$box"/up "$box"/work "$root"
mount -t overlay overlay -o lowerdir=/,upperdir="$box"/up,workdir="$box"/work "$root"
mount -t proc proc "$root"/proc
mount -t tmpfs -o mode=755 tmpfs "$root"/dev
while read -r name major minor; do
    mknod -m 666 "$root/dev/$name" c "$major" "$minor"
done <<< $'null 1 3\nzero 1 5\nfull 1 7\nrandom 1 8\nurandom 1 9\ntty 5 0'
mkdir "$root"/dev/shm "$root"/dev/pts
mount -t tmpfs tmpfs "$root"/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root"/dev/pts
ln -s pts/ptmx "$root"/dev/ptmx
ln -s /proc/self/fd "$root"/dev/fd
mount -t tmpfs -o mode=755 tmpfs "$root"/run
mkdir -p "$root"/opt/model "$root"/opt/checkout
cp -r "$folder"/model/. "$root"/opt/model
mount --bind "$(dirname "$0")"/../.. "$root"/opt/checkout
mount -o remount,bind,ro "$root"/opt/checkout
mount -t tmpfs -o mode=1777 tmpfs "$root"/tmp
mount -t sysfs -o ro sysfs "$root"/sys
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 "$root"/sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 tmpfs "$root"/sys/fs/cgroup
    mkdir "$root"/sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup "$root"/sys/fs/cgroup/systemd
fi
[ ! -e "$folder"/files ] || cp -r --no-dereference "$folder"/files/. "$root"
rm -rf "$root"/etc/systemd/system/*.wants
cp "$folder"/units/* "$root"/etc/systemd/system/
printf '[Unit]\nDefaultDependencies=no\n' > "$root"/etc/systemd/system/box.target
# The interpreter of a checkout may lie in a home that the units' user cannot enter, and so may the model.
chmod 755 "$root"/root
chmod -R a+rX "$root"/opt/model
exec chroot "$root" env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=box.target --log-target=console --show-status=0
