"""The end-to-end tests' cluster and fixtures, for suites that take longer."""

from tests.e2e.conftest import (
    cluster,
    make_namespace,
    module_namespace,
    site,
)

__all__ = ["cluster", "make_namespace", "module_namespace", "site"]
