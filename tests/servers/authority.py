"""A certificate authority of a site, and TLS for servers in this process that it vouches for."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NamedTuple

from tests.cluster import pki

if TYPE_CHECKING:
    from pathlib import Path


class Authority(NamedTuple):
    """The authority's certificate, and a context for servers whose certificate it signed."""

    ca_file: Path
    server: ssl.SSLContext


def make_authority(folder: Path, names: tuple[str, ...] = ("localhost",)) -> Authority:
    """Make both; the certificate is for 127.0.0.1 and the names."""
    authority = pki.Authority(folder / "authority")
    pair = authority.issue("server", names[0], alternative_names=[*names, "127.0.0.1"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.certificate, pair.key)
    return Authority(authority.certificate, server)
