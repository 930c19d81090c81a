#!/bin/sh
# Before a node starts: its control group and its disk, mounted where the node will find it (in the instance's mount
# namespace only, so that it ends with it).
# usage: node-disk.sh FOLDER SIZE CGROUP
set -eu
. "$(dirname "$0")/cgroups.sh"
folder=$1 size=$2 cgroup=$3

make_cgroup "$cgroup/system"
mountpoint -q "$folder/disk" && exit 0
if [ ! -e "$folder/disk.img" ]; then
    truncate -s "$size" "$folder/disk.img.new"
    mkfs.ext4 -q -m 0 -E lazy_itable_init=1,lazy_journal_init=1,nodiscard "$folder/disk.img.new"
    mv "$folder/disk.img.new" "$folder/disk.img"
fi
# The disk of the node's last run is let go a moment after its processes ended. Mounted twice it would be destroyed.
tries=0
while [ -n "$(losetup -j "$folder/disk.img")" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 200 ] || { echo "$folder/disk.img is still in use" >&2; exit 1; }
    sleep 0.05
done
# Direct I/O: else each page would be cached twice, once for the file on the disk and once for the disk's own file.
device=$(losetup --find --show --direct-io=on "$folder/disk.img")
# discard: files deleted on the node give their room back to the host.
mount -o discard,noatime "$device" "$folder/disk" || { losetup -d "$device"; exit 1; }
# Detached now means: released by the kernel at the last unmount, however that comes about.
losetup -d "$device"
