"""Files on nodes, in pods and in images: how the tests compare them, and how they bring them to the registry."""

from collections.abc import Mapping
from typing import Any, Final

from tests.cluster.images import write_image_archive
from tests.e2e.site import Site

SUMS: Final = "find . -type f -exec sha256sum {} +"
"""In a shell: the hash of each file of the current folder, for `parse_sums`."""


def parse_sums(text: str) -> dict[str, str]:
    """Path to sha256 of what `SUMS` printed."""
    return {line[66:].removeprefix("./"): line[:64] for line in text.splitlines()}


def sums_on_node(site: Site, node: str, folder: str, seconds: float = 60) -> dict[str, str]:
    """sha256 of each file below a folder, as the node has them."""
    return parse_sums(site.cluster.node_exec(node, ["sh", "-ec", f'cd "$1" && {SUMS}', "sh", folder], timeout=seconds))


def push_files(site: Site, name_and_tag: str, files: Mapping[str, tuple[bytes, int]], **layout: Any) -> str:
    """Bring an image of these files alone to the registry; its reference.

    Args:
        site: The cluster.
        name_and_tag: Other content needs another tag.
        files: Content and mode by path.
        layout: See `write_image_archive`.
    """
    # Several may be brought there at a time.
    archive = site.checkpoints / f"{name_and_tag.replace(':', '-')}.tar"
    write_image_archive(files, name_and_tag, archive, **layout)
    try:
        return site.cluster.push_image(archive, name_and_tag)
    finally:
        archive.unlink()
