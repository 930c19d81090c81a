"""Authorities from an environment variable: trusted beside the system's, gone afterwards, and what is wrong is said."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import UsageError
from modelweights_loader.sources.extra_ca import open_ca_file
from modelweights_loader.sources.tls import make_tls_context
from tests.checkpoints.synthetic import make_synthetic
from tests.servers.web import WebServer
from tests.unit.loader.conftest import run_loader

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "MODELWEIGHTS_EXTRA_CA"


def test_a_server_of_the_sites_own_authority_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with WebServer() as server:
        make_synthetic(server.folder / "model", 2**20, 2)
        arguments = ("--source", f"{server.https}/index/model/", "--extra-ca-env", VARIABLE)
        (tmp_path / "home").mkdir()
        (tmp_path / "scratch").mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
        monkeypatch.setenv(VARIABLE, server.other_ca_file.read_text())

        refused = run_loader("fetch", tmp_path / "home", *arguments)
        assert (20, "TlsNotTrusted") == (refused.code, refused.report["reason"])

        monkeypatch.setenv(VARIABLE, server.ca_file.read_text())
        fetched = run_loader("fetch", tmp_path / "home", *arguments)
        assert 0 == fetched.code, fetched.stderr

    assert [] == list((tmp_path / "scratch").iterdir())


def test_the_systems_authorities_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with WebServer() as server:
        monkeypatch.setenv(VARIABLE, server.ca_file.read_text())
        usual = ssl.create_default_context().get_ca_certs()

        with open_ca_file(None, VARIABLE) as ca_file:
            assert ca_file is not None
            alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            alone.load_verify_locations(ca_file)
            assert len(usual) + 1 == len(alone.get_ca_certs())
            assert len(usual) + 1 == len(make_tls_context(ca_file).get_ca_certs())


@pytest.mark.parametrize(
    ("ca_file", "value", "expected"),
    [
        ("/some.pem", "x", "exclude each other"),
        (None, " \n", "is empty or not set"),
        (None, None, "is empty or not set"),
    ],
)
def test_what_is_wrong_is_said(
    ca_file: str | None, value: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(UsageError, match=expected), open_ca_file(ca_file, VARIABLE):
        pytest.fail("it was taken")


def test_without_the_option_the_named_file_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "x")
    with open_ca_file("/some.pem", None) as found:
        assert "/some.pem" == found
