"""What a listing may cost: numbers and bytes past which it is refused, since it comes from anybody.

Used by all sources and by `fetch`. With them a fetch stays below 256 MiB, whatever a server says; docs/sources.md has them.
Must not import any library.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, NoReturn

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.sources.contract import SourceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_FILES = 100_000
# Of all names together, as they lie in memory: 160 characters for each of so many files.
MAX_NAMES_BYTES = 2**24
# Folders are what an engine's files lie in; each is remembered twice.
MAX_FOLDERS = 10_000
# Of a manifest, or of one folder's index.
MAX_DOCUMENT_BYTES = 2**24
# What the standard library makes of a JSON text, before anybody can look at it: 16 MiB of `[],[],` become 400.
MAX_PARSED_BYTES = 80 * 2**20
_OBJECT_BYTES, _ARRAY_BYTES, _VALUE_BYTES, _STRING_BYTES = 240, 96, 48, 64
_WIDE_BYTES = 4
# What a library may take meanwhile that reads answers of any length.
_MAX_GROWTH_BYTES = 96 * 2**20


class NamesBudget:
    """Counts names as they come, and refuses the one that is too many."""

    def __init__(self, shown: str) -> None:
        """Begins with nothing.

        Args:
            shown: The source, for messages.
        """
        self._shown = shown
        self._count = 0
        self._bytes = 0

    def add(self, paths: Iterable[str]) -> None:
        """Counts names.

        Args:
            paths: As listed.

        Raises:
            WillNotWorkError: TooManyFiles.
        """
        for path in paths:
            self._count += 1
            self._bytes += len(path) * (1 if path.isascii() else _WIDE_BYTES)
            if self._count > MAX_FILES:
                refuse_number(self._shown, f"more than {MAX_FILES} files")
            if self._bytes > MAX_NAMES_BYTES:
                refuse_number(self._shown, f"names of more than {MAX_NAMES_BYTES} bytes")


class LibraryWatch:
    """Ends what a library reads without an end: called again and again by who waits for one page of it."""

    def __init__(self, shown: str, page_seconds: float) -> None:
        """Begins with what this process takes now.

        Args:
            shown: The source, for messages.
            page_seconds: A page may take so long.
        """
        self._shown = shown
        self._page_seconds = page_seconds
        self._before = _count_resident_bytes()
        self.begin_page()

    def begin_page(self) -> None:
        """Waits for the next page from now on."""
        self._began = time.monotonic()

    def check(self) -> None:
        """Looks.

        Raises:
            WillNotWorkError: BadListing: it takes too much memory.
            SourceUnavailableError: It takes too long.
        """
        grown = _count_resident_bytes() - self._before
        if grown > _MAX_GROWTH_BYTES:
            message = (
                f"{self._shown} answers to a list with so much that it takes {grown >> 20} MiB of memory, more than "
                f"{_MAX_GROWTH_BYTES >> 20}; name the folder of the checkpoint alone, or look at who answers"
            )
            raise WillNotWorkError(message, reason="BadListing")
        if time.monotonic() - self._began > self._page_seconds:
            message = f"{self._shown} lists not one object for {self._page_seconds:g} s; look at who answers"
            raise SourceUnavailableError(message)


def _count_resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def refuse_number(shown: str, what: str) -> NoReturn:
    """Ends a listing that is too large.

    Args:
        shown: The source.
        what: More than what.

    Raises:
        WillNotWorkError: Always.
    """
    message = f"{shown} lists {what}; name the folder of the checkpoint alone"
    raise WillNotWorkError(message, reason="TooManyFiles")


def check_json(content: bytes | bytearray, shown: str, reason: str) -> None:
    """Refuses a text that would become too much in memory when it is parsed.

    Args:
        content: JSON, or not.
        shown: Where it comes from.
        reason: Of the error.

    Raises:
        WillNotWorkError: Its values would take more than `MAX_PARSED_BYTES`.
    """
    wide = _WIDE_BYTES if not content.isascii() or b"\\u" in content else 1
    parsed_bytes = (
        2 * wide * len(content)
        + _OBJECT_BYTES * content.count(b"{")
        + _ARRAY_BYTES * content.count(b"[")
        + _VALUE_BYTES * content.count(b",")
        + _STRING_BYTES * (content.count(b'"') // 2)
    )
    if parsed_bytes > MAX_PARSED_BYTES:
        message = (
            f"{shown} has {len(content)} bytes of JSON that would take some {parsed_bytes >> 20} MiB of memory, more than "
            f"{MAX_PARSED_BYTES >> 20}; name the folder of the checkpoint alone, or look at who answers"
        )
        raise WillNotWorkError(message, reason=reason)


def parse_json(content: bytes | bytearray | None, shown: str, reason: str) -> Any:
    """Parses JSON within bounds; what is none is None.

    Args:
        content: Of a document.
        shown: Where it comes from.
        reason: Of the error.

    Raises:
        WillNotWorkError: See `check_json`.
    """
    check_json(content or b"", shown, reason)
    try:
        return json.loads(content or b"null")
    except (ValueError, RecursionError):
        return None
