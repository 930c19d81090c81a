"""The integration tests' API server and fixtures, for suites that take longer."""

from tests.integration.conftest import account_kubeconfig, admin, chart, server
from tests.integration.test_interrupted import site

__all__ = ["account_kubeconfig", "admin", "chart", "server", "site"]
