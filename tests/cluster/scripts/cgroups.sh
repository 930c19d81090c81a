# shellcheck shell=sh
# Sourced by the other scripts: functions on control groups, for version 1, hybrid and version 2.

CGROUPS=/sys/fs/cgroup

# Every hierarchy's root, one a line.
hierarchies() {
    if [ -e "$CGROUPS/cgroup.controllers" ]; then
        echo "$CGROUPS"
        return
    fi
    for hierarchy in "$CGROUPS"/*/; do
        # Links such as cpu -> cpu,cpuacct would be met twice.
        if [ ! -L "${hierarchy%/}" ] && [ -e "${hierarchy}cgroup.procs" ]; then
            echo "${hierarchy%/}"
        fi
    done
}

# make_cgroup PATH: create it, and every parent, in every hierarchy, ready to take processes.
make_cgroup() {
    for hierarchy in $(hierarchies); do
        parent=$hierarchy
        for part in $(echo "$1" | tr / ' '); do
            delegate "$parent"
            [ -d "$parent/$part" ] || mkdir "$parent/$part"
            if [ -e "$parent/$part/cpuset.cpus" ] && [ -e "$parent/tasks" ]; then
                [ -s "$parent/$part/cpuset.cpus" ] && [ -n "$(cat "$parent/$part/cpuset.cpus")" ] ||
                    cat "$parent/cpuset.cpus" >"$parent/$part/cpuset.cpus"
                [ -n "$(cat "$parent/$part/cpuset.mems")" ] ||
                    cat "$parent/cpuset.mems" >"$parent/$part/cpuset.mems"
            fi
            parent=$parent/$part
        done
    done
}

# delegate DIRECTORY: on version 2 a group's children get only the controllers that it hands down.
delegate() {
    if [ -e "$1/cgroup.subtree_control" ] && [ -e "$CGROUPS/cgroup.controllers" ]; then
        # One at a time: the kernel refuses all of a line when it can't hand one down.
        # shellcheck disable=SC2013
        for controller in $(cat "$1/cgroup.controllers"); do
            echo "+$controller" >"$1/cgroup.subtree_control" 2>/dev/null || true
        done
    fi
}

# join_cgroup PATH PID
join_cgroup() {
    for hierarchy in $(hierarchies); do
        echo "$2" >"$hierarchy/$1/cgroup.procs"
    done
}

# remove_children PATH: remove the empty groups below it.
remove_children() {
    for hierarchy in $(hierarchies); do
        if [ -d "$hierarchy/$1" ]; then
            find "$hierarchy/$1" -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null || true
        fi
    done
}
