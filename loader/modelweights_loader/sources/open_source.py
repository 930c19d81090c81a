"""Opens the source that a URL names. Called by `fetch` and `resolve`. Imports a source's library only when that source is asked for."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING
from urllib.parse import unquote

from modelweights_loader.errors import UsageError, WillNotWorkError
from modelweights_loader.sources.redaction import redact_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelweights_loader.sources.contract import Listing, RemoteFile, Source, SourceOptions

_OBJECT_STORES = {"s3", "gs", "az", "https", "http"}
SCHEMES = ("hf", "s3", "gs", "az", "https", "http", "file")


def open_source(url: str, options: SourceOptions) -> Source:
    """Opens a source; whether it is there shows when it is listed.

    Args:
        url: `hf://org/name`, `s3://bucket/prefix`, `gs://…`, `az://…`, `https://host/path/`, or `file:///folder`.
        options: What it is told beside.

    Returns:
        The source; the caller closes it.

    Raises:
        UsageError: The URL names no kind of source that there is.
        WillNotWorkError: Its library is not installed.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES or not rest.strip("/"):
        message = f"{redact_url(url)!r} is no source; write one of {', '.join(f'{name}://…' for name in SCHEMES)}"
        raise UsageError(message)
    if scheme == "file":
        return _open_folder(url, rest, options)
    if scheme in _OBJECT_STORES:
        return _make("modelweights_loader.sources.objectstore", "ObjectStoreSource", url, options)
    return _make("modelweights_loader.sources.huggingface", "HuggingFaceSource", rest.strip("/"), options)


def open_when_asked(url: str, options: SourceOptions) -> Source:
    """Opens a source; what it lacks shows when it is asked: all may be on this node already, and nobody need be asked.

    Args:
        url: As for `open_source`.
        options: Likewise.

    Returns:
        The source; the caller closes it.

    Raises:
        UsageError: As for `open_source`.
    """
    try:
        return open_source(url, options)
    except WillNotWorkError as error:
        return _RefusingSource(error)


class _RefusingSource:
    """In the place of one whose Secret, authorities or library are missing."""

    def __init__(self, error: WillNotWorkError) -> None:
        self._error = error

    def list_files(self) -> Listing:
        """Says what is missing."""
        raise self._error

    def read_range(self, _file: RemoteFile, _begin: int, _end: int) -> Iterator[bytes | memoryview]:
        """Says what is missing."""
        raise self._error

    def close(self) -> None:
        """Does nothing."""


def _open_folder(url: str, rest: str, options: SourceOptions) -> Source:
    from modelweights_loader.sources.local import LocalSource  # noqa: PLC0415 - only where it is asked for

    host, _, path = rest.partition("/")
    if host not in {"", "localhost"}:
        message = f"{redact_url(url)} names the host {host}; write file:///folder, with three slashes"
        raise UsageError(message)
    return LocalSource(os.path.normpath("/" + unquote(path)), options)


def _make(module: str, name: str, target: str, options: SourceOptions) -> Source:
    try:
        made: Source = getattr(importlib.import_module(module), name)(target, options)
    except ImportError as error:
        message = (
            f"this kind of source needs a library that is not installed ({error}); pip install "
            "'modelweights-operator[sources]'"
        )
        raise WillNotWorkError(message, reason="LibraryMissing") from error
    return made
