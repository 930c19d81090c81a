"""Takes what is secret out of URLs before they are shown: signatures and tokens in queries, user names, fragments.

Called by every source and by `fetch`, for each URL in a message, report or listing. Must not import any library.
"""

from __future__ import annotations

import re

_URL = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s"'<>\\^`{|}]*""")


def redact_url(url: str) -> str:
    """Takes user information, query and fragment out of a URL.

    Args:
        url: Any; also one that is not well formed.

    Returns:
        Scheme, host, port and path; `?…` in the place of a query.
    """
    kept, question, _ = url.partition("#")[0].partition("?")
    scheme, separator, rest = kept.partition("://")
    if not separator:
        scheme, rest = "", kept
    authority, slash, path = rest.partition("/")
    host = authority.rpartition("@")[2]
    return f"{scheme}{separator}{host}{slash}{path}{'?…' if question else ''}"


def redact_text(text: str) -> str:
    """Does the same with every URL in a text, as in the message of a library's error.

    Args:
        text: Any.

    Returns:
        The text in one line.
    """
    return _URL.sub(lambda found: redact_url(found[0]), " ".join(text.split()))
