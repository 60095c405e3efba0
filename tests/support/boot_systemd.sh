#!/bin/sh
# Boot a real systemd as PID 1 of its own namespaces, from this machine's own /usr: no image, no download, a second.
#
#   boot_systemd.sh FOLDER UNITS PASSWD [SOURCE:TARGET[:ro]]...
#
# FOLDER is an empty one for its mounts, the files of UNITS go to /etc/systemd/system, PASSWD is a line for /etc/passwd;
# each SOURCE folder appears at TARGET. It runs until its PID 1 ends, then takes its cgroups away.
# Needs root (CAP_SYS_ADMIN), util-linux and systemd. Enter it with: nsenter -t PID_OF_SYSTEMD -a systemctl ...
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

# Three lives: `outer` owns the cgroups, `joined` enters them, `inner` is the new PID 1 to be.
life=${1:?}
case $life in outer | joined | inner) shift ;; *) exec unshare --mount --propagation private sh "$0" outer "$@" ;; esac

named_v1() { grep -q ':name=systemd:' /proc/self/cgroup; }
mount_cgroups() { # into folder $1: v1's named hierarchy together with v2, or v2 alone
    if named_v1; then
        mkdir -p "$1/systemd" "$1/unified"
        mount -t cgroup -o none,name=systemd cgroup "$1/systemd"
        mount -t cgroup2 cgroup2 "$1/unified"
    else
        mount -t cgroup2 cgroup2 "$1"
    fi
}
own_groups() { # the folders below $1 of the cgroups this process is in
    if named_v1; then
        echo "$1/systemd$(sed -n 's/^[0-9]*:name=systemd://p' /proc/self/cgroup)"
        echo "$1/unified$(sed -n 's/^0:://p' /proc/self/cgroup)"
    else
        echo "$1$(sed -n 's/^0:://p' /proc/self/cgroup)"
    fi
}

if [ "$life" = outer ]; then
    # systemd makes its slices below the cgroup it finds itself in: it gets one of its own, and two rigs never meet.
    top=$1/cgroups
    mkdir "$top"
    mount -t tmpfs tmpfs "$top"
    mount_cgroups "$top"
    mine=
    for group in $(own_groups "$top"); do
        mkdir "$group/qd-rig-$$"
        mine="$mine $group/qd-rig-$$"
    done
    # Whoever kills this shell kills all of it: unshare dies with its parent, PID 1 with unshare, the rest with PID 1.
    MINE=$mine setpriv --pdeathsig KILL sh "$0" joined "$@" && code=0 || code=$?
    for group in $mine; do
        for try in 1 2 3 4 5 6 7 8 9 10; do # the last processes leave their groups a moment after they are gone
            find "$group" -depth -type d -exec rmdir {} + 2>/dev/null && break
            sleep 0.1
        done
    done
    exit "$code"
fi

if [ "$life" = joined ]; then
    for group in $MINE; do echo $$ >"$group/cgroup.procs"; done
    exec unshare --pid --fork --kill-child --mount --propagation private --uts --ipc --cgroup sh "$0" inner "$@"
fi

root=$1/root units=$2 passwd=$3
shift 3
mkdir "$root"
mount -t tmpfs tmpfs "$root"
cd "$root"
mkdir -p usr proc sys dev run tmp root var/log var/lib etc/systemd/system old

# Programs: the machine's /usr, read-only, with the links of a merged /usr.
mount --rbind /usr usr
mount -o remount,bind,ro usr
for name in bin sbin lib lib32 lib64; do [ ! -e "/usr/$name" ] || ln -s "usr/$name" "$name"; done

# Configuration: as little as possible. With a machine-id and a locale systemd asks no first-boot questions.
for name in passwd group nsswitch.conf ld.so.cache ld.so.conf ssl alternatives dbus-1; do
    [ ! -e "/etc/$name" ] || cp -a "/etc/$name" etc/
done
echo "$passwd" >>etc/passwd
tr -d - </proc/sys/kernel/random/uuid >etc/machine-id
echo LANG=C >etc/locale.conf
echo rig >etc/hostname
: >etc/fstab
echo 'root:*:::::::' >etc/shadow
ln -s /usr/share/zoneinfo/UTC etc/localtime
cp -r "$units"/* etc/systemd/system/
# The kernel is the machine's: nothing here may change its settings, load modules or listen to its audit.
for name in systemd-sysctl.service systemd-modules-load.service systemd-journald-audit.socket systemd-udevd.service \
    systemd-udev-trigger.service proc-sys-fs-binfmt_misc.automount systemd-binfmt.service systemd-remount-fs.service; do
    ln -s /dev/null "etc/systemd/system/$name"
done

for pair in "$@"; do
    source=${pair%%:*} rest=${pair#*:}
    target=.${rest%:ro}
    mkdir -p "$target"
    mount --bind "$source" "$target"
    [ "$rest" = "${rest%:ro}" ] || mount -o remount,bind,ro "$target"
done

mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs tmpfs sys/fs/cgroup
mount_cgroups "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=0755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp

mount -t tmpfs -o mode=0755 tmpfs dev
for name in null zero full random urandom tty; do
    : >"dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for number in 0 1 2; do ln -s "/proc/self/fd/$number" "dev/std$(echo in out err | cut -d' ' -f$((number + 1)))"; done
ln -s null dev/console

# pivot_root and not chroot: the kernel refuses new user namespaces (PrivateUsers=) to who lives in a chroot.
pivot_root . old
umount -l old
rmdir old
exec env -i container=qd-rig PATH="$PATH" /usr/lib/systemd/systemd --log-target=journal --show-status=0 --unit=basic.target
