"""Which proxy a request takes, by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.

Called by `http_ranges`. Must not import any library.
"""

from __future__ import annotations

import base64
import ipaddress
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from modelweights_loader.errors import WillNotWorkError


class Proxy(NamedTuple):
    """Where to connect to, and the headers for the proxy alone (its user and password)."""

    host: str
    port: int
    headers: tuple[tuple[str, str], ...] = ()


class ProxyTable:
    """The settings as they were when it was made. Its values are never shown: they may hold a password."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings

    @classmethod
    def from_environment(cls) -> ProxyTable:
        """Read the variables; lower case wins, as everywhere."""
        return cls(getproxies())

    def choose(self, scheme: str, host: str, port: int) -> Proxy | None:
        """Find the proxy for an origin.

        Returns:
            None to connect directly.

        Raises:
            WillNotWorkError: The setting is no URL of a proxy that we can speak to.
        """
        stated = self._settings.get(scheme) or self._settings.get("all")
        if not stated or proxy_bypass(f"{host}:{port}", self._settings) or self._is_in_network(host):
            return None
        variable = f"{scheme.upper()}_PROXY"
        try:
            parts = urlsplit(stated if "://" in stated else f"http://{stated}")
            number = parts.port or 80
        except ValueError as error:
            raise WillNotWorkError(f"{variable} is no URL; write http://host:port", reason="BadProxy") from error
        if parts.scheme != "http" or not parts.hostname:
            message = f"{variable} names a proxy of the kind {parts.scheme[:10]!r}; only http://host:port works"
            raise WillNotWorkError(message, reason="BadProxy")
        return Proxy(parts.hostname, number, _make_headers(parts.username, parts.password))

    def _is_in_network(self, host: str) -> bool:
        """NO_PROXY of clusters has networks (10.0.0.0/8), which Python's own reading of it doesn't know."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        for entry in self._settings.get("no", "").split(","):
            try:
                if address in ipaddress.ip_network(entry.strip(), strict=False):
                    return True
            except ValueError:
                continue
        return False


def _make_headers(user: str | None, password: str | None) -> tuple[tuple[str, str], ...]:
    if user is None:
        return ()
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return (("Proxy-Authorization", f"Basic {base64.b64encode(pair).decode()}"),)
