"""Bounds that spec and status share. Part of `v1alpha1`."""

from typing import Final

MAX_RANKS: Final = 16
MAX_NODES: Final = 2000
"""More nodes than this would take the object past what etcd and watchers bear: it stalls with the advice to split."""
MAX_PREVIOUS: Final = 8
MAX_DIGESTS_BESIDE: Final = 8
MAX_LEFTOVERS: Final = 6
"""As many as the loader reports: they have to fit into a termination message."""
