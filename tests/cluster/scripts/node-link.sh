#!/bin/sh
# After a node's process started: plug its network namespace into the instance's bridge.
# usage: node-link.sh NAME PID
set -eu
name=$1 pid=$2
ip link add "$name" type veth peer name eth0 netns "$pid"
ip link set "$name" master nodes0 up
