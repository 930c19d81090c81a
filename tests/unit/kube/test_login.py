"""TLS contexts that aren't strict about the form of certificates, as Python 3.13 makes them by default."""

import ssl

import kopf
import pytest

from modelweights_operator.kube import login


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13's default, on any version."""
    make = ssl.create_default_context

    def make_strict(purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH, **options: str | None) -> ssl.SSLContext:
        context = make(purpose, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", make_strict)


@pytest.mark.usefixtures("strict")
def test_only_the_form_of_certificates_is_not_verified() -> None:
    found = kopf.ConnectionInfo(server="https://cluster", token="secret", default_namespace="team")  # noqa: S106
    assert found.as_ssl_context().verify_flags & ssl.VERIFY_X509_STRICT

    connection = login.relaxed(found)

    assert connection is not None
    context = connection.as_ssl_context()
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (connection.server, connection.token, connection.default_namespace) == ("https://cluster", "secret", "team")


def test_no_connection_stays_none() -> None:
    assert login.relaxed(None) is None
