"""The end-to-end tests' cluster and fixtures, for suites that take longer."""

from tests.e2e.conftest import (
    chosen,
    cluster,
    make_namespace,
    module_namespace,
    site,
)
from tests.e2e.test_claim import restricted
from tests.e2e.test_room import sources

__all__ = ["chosen", "cluster", "make_namespace", "module_namespace", "restricted", "site", "sources"]
