"""Whether kopf's watch of ModelWeights still lives. Kept by the reconciler; no I/O."""

import time
from collections.abc import Mapping

Key = tuple[str, str]


class Watchdog:
    """Tells when kopf's watch of ModelWeights has died silently: a list shows what it never delivered.

    Args:
        quiet_seconds: For how long an object may differ before that is the verdict.
    """

    def __init__(self, quiet_seconds: float) -> None:
        self._quiet_seconds = quiet_seconds
        self._versions: dict[Key, str] = {}
        self._missed_since: dict[Key, float] = {}

    def seen(self, key: Key, version: str) -> None:
        """The watch delivered an object; "" when it is gone."""
        self._missed_since.pop(key, None)
        if version:
            self._versions[key] = version
        else:
            self._versions.pop(key, None)

    def listed(self, versions: Mapping[Key, str]) -> None:
        """A list showed these objects."""
        now = time.monotonic()
        missed = {key for key, version in versions.items() if self._versions.get(key) != version}
        missed |= self._versions.keys() - versions.keys()
        self._missed_since = {key: self._missed_since.get(key, now) for key in missed}

    def verdict(self) -> str:
        """Why the watch counts as dead; "" when it doesn't."""
        now = time.monotonic()
        for key, since in self._missed_since.items():
            if now - since > self._quiet_seconds:
                return f"the watch of ModelWeights missed {key[0]}/{key[1]} for {now - since:.0f} s"
        return ""
