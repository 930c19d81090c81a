"""How kopf's own connections are made: as the library does it, but for one flag. Called by `handlers`.

From Python 3.13 on, default TLS contexts verify by the letter of RFC 5280, and refuse an authority whose certificate lacks
a key usage or an authority key identifier. Many clusters' have neither; every other client of Kubernetes takes them. What
is verified otherwise (the chain, the host's name, the times) stays.
"""

import dataclasses
import ssl

import kopf


class Connection(kopf.ConnectionInfo):
    """A connection whose TLS context isn't strict about the form of certificates."""

    def as_ssl_context(self) -> ssl.SSLContext:
        """The library's context without VERIFY_X509_STRICT."""
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


def relaxed(found: kopf.ConnectionInfo | None) -> Connection | None:
    """The same connection with our TLS context; None for none."""
    if found is None:
        return None
    return Connection(**{field.name: getattr(found, field.name) for field in dataclasses.fields(found)})
