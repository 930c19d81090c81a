"""Makes the TLS context of the sources that speak HTTPS, with a site's own authorities.

Called by `http_ranges`. Must not import anything but the standard library at the top.
"""

from __future__ import annotations

import os
import ssl

from modelweights_loader.errors import WillNotWorkError, describe_os_error


def make_tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Make a context that verifies certificates and names.

    The system's authorities count (SSL_CERT_FILE and SSL_CERT_DIR name others); those of the file come on top. An image
    without any authorities falls back to certifi's.

    Args:
        ca_file: PEM bundle, or None.

    Raises:
        WillNotWorkError: The file is missing or no bundle.
    """
    context = ssl.create_default_context()
    if not _has_authorities():
        _add_certifi(context)
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except ssl.SSLError as error:
            message = f"{ca_file} is no bundle of certificates in PEM; put the authority's certificate there"
            raise WillNotWorkError(message, reason="CaNotUsable") from error
        except OSError as error:
            message = f"cannot read the authorities in {ca_file} ({describe_os_error(error)}); check what is mounted"
            raise WillNotWorkError(message, reason="CaNotUsable") from error
    return context


def _has_authorities() -> bool:
    paths = ssl.get_default_verify_paths()
    # Either is None where it doesn't exist; a folder may be there and empty.
    return bool(paths.cafile) or bool(paths.capath and os.listdir(paths.capath))


def _add_certifi(context: ssl.SSLContext) -> None:
    try:
        import certifi  # noqa: PLC0415 - comes with huggingface_hub; plain http needs none
    except ImportError:
        return
    context.load_verify_locations(cafile=certifi.where())
