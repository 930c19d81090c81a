"""Lists a source, which pins its revision. Called by `fetching` and by `commands.resolve`. Writes nothing."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, TypeVar

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.fetch.names import check_files
from modelweights_loader.fetch.retry import repeat
from modelweights_loader.interruptible import call
from modelweights_loader.sources.contract import SourceChangedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from modelweights_loader.fetch.retry import Backoff
    from modelweights_loader.sources.contract import Listing

    class Listed(Protocol):
        """What can be listed."""

        def list_files(self) -> Listing:
            """See `contract.Source.list_files`."""


_Result = TypeVar("_Result")
_PINNED = re.compile(r"[0-9a-f]{40}|sha256:[0-9a-f]{64}")


def is_pinned(revision: str) -> bool:
    """Tells whether a revision always names the same content.

    Args:
        revision: As it was asked for.

    Returns:
        True for a full commit and for the digest of a listing.
    """
    return _PINNED.fullmatch(revision) is not None


def list_pinned(source: Listed, backoff: Backoff, say: Callable[[str], None]) -> Listing:
    """Lists a source, again and again where that helps.

    Args:
        source: What to list.
        backoff: Counts failures.
        say: Told of them.

    Returns:
        The listing, with names that were checked.

    Raises:
        LoaderError: It can't be listed, or holds what no checkpoint has.
    """
    listing = repeat(lambda: call(source.list_files), backoff, time.sleep, say)
    check_files(listing.files)
    return listing


def run_pinned(run: Callable[[], _Result], revision: str, say: Callable[[str], None]) -> _Result:
    """Runs what lists a source, once more if that changes meanwhile.

    Args:
        run: What to run.
        revision: As it was asked for: one that is pinned gives nothing else the second time.
        say: Told of it.

    Returns:
        What `run` does.

    Raises:
        WillNotWorkError: The source no longer has the pinned revision.
    """
    try:
        return run()
    except SourceChangedError as error:
        if is_pinned(revision):
            raise WillNotWorkError(error.message, reason=error.reason) from error
        say(f"{error.message}; it is listed anew")
        return run()
