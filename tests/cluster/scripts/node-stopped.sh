#!/bin/sh
# After a node ended, by whatever cause: the control groups of its pods.
# usage: node-stopped.sh CGROUP
set -eu
. "$(dirname "$0")/cgroups.sh"
remove_children "$1"
