#!/bin/sh
# First thing inside a node's namespaces: a root of its own, and its network.
#
# The root is an overlay: the host's files below, what the node writes on its disk above. So kubelet, containerd and
# host paths of pods use the usual places, and nothing of it reaches the host or another node.
# usage: node-setup.sh FOLDER PROGRAMS LOGS CGROUP MODEL-ROOT MODEL-OWNER MODEL-MODE
set -eu
. "$(dirname "$0")/cgroups.sh"
folder=$1 programs=$2 logs=$3 cgroup=$4 models=$5 owner=$6 mode=$7
disk=$folder/disk root=$folder/root

mount --make-rprivate /
join_cgroup "$cgroup/system" 1

mkdir -p "$disk/upper" "$disk/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$disk/upper,workdir=$disk/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
# Straight on the disk: an overlay can't hold containerd's overlays, and page cache is only that of a plain file there.
for path in /var/lib/kubelet /var/lib/containerd /var/log/pods /var/log/containers "$models"; do
    mkdir -p "$disk/data$path" "$root$path"
    mount --bind "$disk/data$path" "$root$path"
done
chown "$owner" "$root$models"
chmod "$mode" "$root$models"
for pair in "$folder=/etc/modelweights-node" "$programs=/opt/modelweights/bin" "$logs=/var/log/modelweights"; do
    mkdir -p "$root${pair#*=}"
    mount --bind "${pair%%=*}" "$root${pair#*=}"
done

# The kubelet sets these for the whole machine. It leaves alone what already reads as it wants it.
set_aside() {
    if [ -e "$root/proc/sys/$1" ]; then
        mkdir -p "$root/run/sysctl"
        file=$root/run/sysctl/$(echo "$1" | tr / .)
        echo "$2" >"$file"
        mount --bind "$file" "$root/proc/sys/$1"
    fi
}
set_aside vm/overcommit_memory 1
set_aside vm/panic_on_oom 0
set_aside kernel/panic 10
set_aside kernel/panic_on_oops 1
set_aside kernel/keys/root_maxkeys 1000000
set_aside kernel/keys/root_maxbytes 25000000

mkdir -p "$root/mnt"
mount --make-rprivate "$root"
cd "$root"
pivot_root . mnt
umount -l /mnt
mount --make-rshared /

hostname "$(basename "$folder")"
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do
    sleep 0.05
done
while read -r kind first second; do
    case $kind in
    address) ip addr add "$first" dev eth0 && ip link set eth0 up ;;
    gateway) ip route add default via "$first" ;;
    route) ip route add "$first" via "$second" ;;
    esac
done </etc/modelweights-node/network
echo 1 >/proc/sys/net/ipv4/ip_forward
