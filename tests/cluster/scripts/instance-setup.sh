#!/bin/sh
# First thing inside an instance's namespaces: its own /proc, control group and network.
# usage: instance-setup.sh CGROUP ADDRESS NODE-SUBNET-VIA...   (each "10.244.1.0/24=10.90.0.11")
set -eu
. "$(dirname "$0")/cgroups.sh"
cgroup=$1 address=$2
shift 2

mount --make-rprivate /
mount -t proc proc /proc
mount -t sysfs sysfs /mnt
mount --rbind /sys/fs/cgroup /mnt/fs/cgroup
mount --rbind /mnt /sys
umount -l /mnt

make_cgroup "$cgroup/control"
join_cgroup "$cgroup/control" 1

ip link set lo up
ip link add nodes0 type bridge
ip addr add "$address/24" dev nodes0
ip link set nodes0 up
echo 1 >/proc/sys/net/ipv4/ip_forward
for route; do
    ip route add "${route%=*}" via "${route#*=}"
done
