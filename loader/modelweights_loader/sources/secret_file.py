"""Reads what is secret from a file, as a Secret is mounted. Called by every source that takes a token or credentials.

Anew at each use, since it may be rotated. Never shows anything of the content. Must not import any library.
"""

from __future__ import annotations

from modelweights_loader.errors import WillNotWorkError, error_from_os
from modelweights_loader.small_files import read_regular

SECRET_MISSING = "SecretMissing"  # noqa: S105 - a reason
_MAX_BYTES = 64 * 2**10


def read_secret(path: str, what: str, remedy: str) -> str:
    """Reads one secret.

    Args:
        path: The file.
        what: What is in it, for messages.
        remedy: What to do where it isn't.

    Returns:
        Its text without white space around it, at least one character.

    Raises:
        WillNotWorkError: SecretMissing: it isn't there, empty, too long or no text. Or it may not be read.
        TryAgainError: The storage failed.
    """
    try:
        content = read_regular(path, _MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise WillNotWorkError(f"there is no {what} in {path}; {remedy}", reason=SECRET_MISSING) from error
    except OSError as error:
        raise error_from_os(error, path, f"read the {what} in") from error
    except ValueError as error:
        raise WillNotWorkError(f"{path} is no regular file; {remedy}", reason=SECRET_MISSING) from error
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        # From None: the error holds the bytes.
        raise WillNotWorkError(f"{path} holds no {what}: it is no text; {remedy}", reason=SECRET_MISSING) from None
    if not text:
        raise WillNotWorkError(f"the {what} in {path} is empty; {remedy}", reason=SECRET_MISSING)
    if len(content) > _MAX_BYTES:
        raise WillNotWorkError(f"{path} is too long for a {what}; {remedy}", reason=SECRET_MISSING)
    return text
