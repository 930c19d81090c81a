"""What of a checkpoint is in a node's page cache, as root on the node sees it page by page, and how it is emptied."""

import time

from tests.cluster.providers import Cluster


def resident_bytes(cluster: Cluster, node: str, folder: str) -> int:
    """Bytes of a folder's shards that are resident."""
    argv = ["sh", "-c", 'fincore --bytes --noheadings --output=RES "$1"/*.safetensors', "sh", folder]
    return sum(int(line) for line in cluster.node_exec(node, argv).split())


def size_bytes(cluster: Cluster, node: str, folder: str) -> int:
    """Bytes of a folder's shards."""
    argv = ["sh", "-c", 'stat --format=%s "$1"/*.safetensors', "sh", folder]
    return sum(int(line) for line in cluster.node_exec(node, argv).split())


def drop(cluster: Cluster, node: str, folder: str, left_bytes: float = 0) -> None:
    """Take a folder's files out of the page cache, until no more than so many bytes of its shards are left."""
    script = 'for file in "$1"/*; do dd if="$file" iflag=nocache count=0 status=none; done'
    cluster.node_exec(node, ["sync"])
    cluster.node_exec(node, ["sh", "-ec", script, "sh", folder])
    deadline = time.monotonic() + 10
    while resident_bytes(cluster, node, folder) > left_bytes:
        assert time.monotonic() < deadline, "the checkpoint stays in the page cache"
        time.sleep(0.2)
