"""Names what lies in place of a shard or an index by its first bytes.

Called by `safetensors_header` and `checkpoint` for files that are not what they should be. Must not import torch.
"""

from __future__ import annotations

from typing import NamedTuple


class Lookalike(NamedTuple):
    """What a file is, and what to do about it."""

    what: str
    reason: str
    remedy: str


_AGAIN = "download it again"
_LFS = Lookalike("a Git LFS pointer", "GitLfsPointer", "run `git lfs pull` or download it again")
_PAGE = Lookalike("an HTML or XML page (an error page of a server?)", "HtmlPage", _AGAIN)
_JSON = Lookalike("JSON text (an error message of a server?)", "JsonText", _AGAIN)
_ZEROS = Lookalike("all zeros where its header should be (a download that did not finish?)", "ZerosForHeader", _AGAIN)
_CONVERT = "convert it to safetensors again, or download the repository's safetensors"
_MAGIC = (
    (b"PK\x03\x04", "a zip archive (a torch checkpoint, *.bin or *.pt?)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"GGUF", "a GGUF file"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x93NUMPY", "a numpy array"),
    (b"\x80\x02", "a pickle"),
    (b"\x80\x03", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"\x80\x05", "a pickle"),
)
_ZEROS_LOOKED_AT = 16


def name_lookalike(start: bytes) -> Lookalike | None:
    """Says what a file is that can't be a safetensors file.

    Args:
        start: Its first bytes, some hundred of them.

    Returns:
        What it is, or None if that can't be told.
    """
    if start.startswith(b"version https://git-lfs"):
        return _LFS
    text = start[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<error")):
        return _PAGE
    if text.startswith((b'{"', b"{\n", b"{\r", b"{ ")):
        return _JSON
    if len(start) >= _ZEROS_LOOKED_AT and not any(start[:_ZEROS_LOOKED_AT]):
        return _ZEROS
    for magic, what in _MAGIC:
        if start.startswith(magic):
            return Lookalike(what, "OtherFormat", _CONVERT)
    return None
