"""A site's own authorities from an environment variable, as a file beside the system's. Called by the command `fetch`.

A staging pod gets them so: of a ConfigMap each namespace would need one, and a file would have to be mounted from somewhere.
Must not import any library.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from typing import TYPE_CHECKING

from modelweights_loader.errors import UsageError, WillNotWorkError, describe_os_error

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_BUNDLE_BYTES = 16 * 2**20


@contextlib.contextmanager
def open_ca_file(ca_file: str | None, variable: str | None) -> Iterator[str | None]:
    """Gives the file of authorities that sources are told.

    Args:
        ca_file: The one that was named, or None.
        variable: Name of the environment variable that holds certificates in PEM, or None.

    Yields:
        `ca_file`, or a file below TMPDIR with the variable's certificates and the system's; it goes in the end.

    Raises:
        UsageError: Both are given, or the variable isn't set.
        WillNotWorkError: It can't be written.
    """
    if variable is None:
        yield ca_file
        return
    if ca_file is not None:
        message = "--ca-file and --extra-ca-env exclude each other; pass one of them"
        raise UsageError(message)
    pem = os.environ.get(variable, "")
    if not pem.strip():
        message = f"--extra-ca-env names {variable}, which is empty or not set; put certificates in PEM there"
        raise UsageError(message)
    place = _write(pem)
    try:
        yield place
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)


def _write(pem: str) -> str:
    try:
        with tempfile.NamedTemporaryFile(prefix="authorities-", suffix=".pem", delete=False) as file:
            # The site's come first, for readers that take one certificate only.
            file.write(f"{pem.strip()}\n".encode())
            file.write(_read_system_bundle())
            return file.name
    except OSError as error:
        message = f"the certificates can't be written to a file ({describe_os_error(error)}); set TMPDIR to a folder with room"
        raise WillNotWorkError(message, reason="CaNotUsable") from error


def _read_system_bundle() -> bytes:
    paths = ssl.get_default_verify_paths()
    if not paths.cafile:
        return b""
    with open(paths.cafile, "rb") as file:
        return file.read(_MAX_BUNDLE_BYTES)
