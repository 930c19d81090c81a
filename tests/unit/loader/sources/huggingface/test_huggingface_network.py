"""Proxies, a site's own authority, and TLS that isn't trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import LoaderError
from modelweights_loader.sources.proxies import ProxyTable
from tests.servers.authority import make_authority
from tests.servers.hub import Hub
from tests.servers.proxy import ForwardProxy
from tests.servers.repositories import is_vouched, make_repository, read_whole

if TYPE_CHECKING:
    from pathlib import Path

    from modelweights_loader.sources.huggingface import HuggingFaceSource
    from tests.unit.loader.sources.huggingface.conftest import OpenHub


def fetch_all(source: HuggingFaceSource) -> int:
    """Read all files in two ranges; return how many."""
    files = source.list_files().files
    assert all(is_vouched(file, read_whole(source, file, 2)) for file in files)
    return len(files)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("user", ["", "us er"])
def test_by_a_proxy_that_alone_knows_the_way(
    tmp_path: Path, open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch, scheme: str, user: str
) -> None:
    make_repository(tmp_path / "hub")
    authority = make_authority(tmp_path, ("hub.test",))
    tls = authority.server if scheme == "https" else None
    with Hub(tmp_path / "hub", tls=tls, name="hub.test") as hub, ForwardProxy(user=user) as proxy:
        credentials = "us%20er:p%3Aw@" if user else ""
        monkeypatch.setenv(f"{scheme}_proxy", proxy.url.replace("://", f"://{credentials}"))
        assert 5 == fetch_all(open_hub(hub, ca_file=str(authority.ca_file)))
        assert {hub.url.rpartition("/")[2], hub.data_url.rpartition("/")[2]} == set(proxy.seen)


@pytest.mark.parametrize(
    ("status", "reason"), [(407, "ProxyRefused"), (403, "ProxyRefused"), (502, "SourceUnavailable")]
)
def test_a_proxy_that_refuses(
    tmp_path: Path, open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch, status: int, reason: str
) -> None:
    make_repository(tmp_path / "hub")
    authority = make_authority(tmp_path)
    with Hub(tmp_path / "hub", tls=authority.server) as hub, ForwardProxy(refuse=status) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("://", "://someone:hushhush@"))
        with pytest.raises(LoaderError, match="the proxy refuses") as caught:
            open_hub(hub, ca_file=str(authority.ca_file)).list_files()
    assert reason == caught.value.reason
    assert "hushhush" not in caught.value.message


@pytest.mark.parametrize(
    ("settings", "origin", "expected"),
    [
        ({}, ("https", "hub.test", 443), None),
        ({"https": "http://p:3128"}, ("https", "hub.test", 443), ("p", 3128)),
        ({"https": "p:3128"}, ("https", "hub.test", 443), ("p", 3128)),
        ({"https": "http://p:3128"}, ("http", "hub.test", 80), None),
        ({"all": "http://p"}, ("http", "hub.test", 80), ("p", 80)),
        ({"all": "http://p", "no": "hub.test"}, ("http", "hub.test", 80), None),
        ({"all": "http://p", "no": ".test"}, ("http", "hub.test", 80), None),
        ({"all": "http://p", "no": "test"}, ("http", "hub.test", 80), None),
        ({"all": "http://p", "no": "b.test"}, ("http", "hub.test", 80), ("p", 80)),
        ({"all": "http://p", "no": "hub.test:80"}, ("http", "hub.test", 80), None),
        ({"all": "http://p", "no": "*"}, ("http", "hub.test", 80), None),
        ({"all": "http://p", "no": "x, 10.0.0.0/8"}, ("http", "10.1.2.3", 80), None),
        ({"all": "http://p", "no": "10.0.0.0/8"}, ("http", "11.1.2.3", 80), ("p", 80)),
        ({"all": "http://p", "no": "fd00::/8"}, ("http", "fd12::1", 80), None),
    ],
)
def test_which_proxy(settings: dict[str, str], origin: tuple[str, str, int], expected: tuple[str, int] | None) -> None:
    chosen = ProxyTable(settings).choose(*origin)
    assert expected == (chosen[:2] if chosen else None)


@pytest.mark.parametrize("stated", ["socks5://p:1080", "https://p", "http://:80", "http://p:x"])
def test_a_proxy_that_we_can_not_speak_to(stated: str) -> None:
    with pytest.raises(LoaderError, match="HTTPS_PROXY") as caught:
        ProxyTable({"https": stated}).choose("https", "hub.test", 443)
    assert "BadProxy" == caught.value.reason


def test_the_authority_of_the_site_is_added_to_those_of_the_system(tmp_path: Path, open_hub: OpenHub) -> None:
    make_repository(tmp_path / "hub")
    authority = make_authority(tmp_path)
    with Hub(tmp_path / "hub", tls=authority.server) as hub:
        assert 5 == fetch_all(open_hub(hub, ca_file=str(authority.ca_file)))


def test_an_authority_that_is_not_known_and_a_name_that_is_not_the_hosts(tmp_path: Path, open_hub: OpenHub) -> None:
    make_repository(tmp_path / "hub")
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    authority, other = make_authority(tmp_path / "one", ("hub.test",)), make_authority(tmp_path / "other")
    with Hub(tmp_path / "hub", tls=authority.server) as hub:
        wrong_name = hub.url.replace("127.0.0.1", "localhost")
        rows: list[tuple[str, str | None]] = [(hub.url, None), (hub.url, str(other.ca_file))]
        for endpoint, ca_file in [*rows, (wrong_name, str(authority.ca_file))]:
            with pytest.raises(LoaderError, match="isn't trusted") as caught:
                open_hub(hub, endpoint=endpoint, ca_file=ca_file).list_files()
            assert ("TlsNotTrusted", False) == (caught.value.reason, caught.value.retry)


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_an_authority_that_is_none(tmp_path: Path, open_hub: OpenHub, content: str | None) -> None:
    make_repository(tmp_path / "hub")
    if content is not None:
        (tmp_path / "wrong.pem").write_text(content)
    with (
        Hub(tmp_path / "hub", tls=make_authority(tmp_path).server) as hub,
        pytest.raises(LoaderError, match=r"wrong\.pem") as caught,
    ):
        open_hub(hub, ca_file=str(tmp_path / "wrong.pem")).list_files()
    assert "CaNotUsable" == caught.value.reason


def test_https_to_a_port_that_speaks_http(hub: Hub, open_hub: OpenHub) -> None:
    with pytest.raises(LoaderError, match="check scheme and port") as caught:
        open_hub(hub, endpoint=hub.url.replace("http:", "https:")).list_files()
    assert ("TlsFailed", False) == (caught.value.reason, caught.value.retry)


def test_a_redirect_from_https_to_http_is_not_followed(tmp_path: Path, open_hub: OpenHub) -> None:
    make_repository(tmp_path / "hub")
    authority = make_authority(tmp_path)
    with Hub(tmp_path / "hub", tls=authority.server) as hub, Hub(tmp_path / "hub") as plain:
        hub.data_url = plain.data_url
        source = open_hub(hub, ca_file=str(authority.ca_file))
        file = next(each for each in source.list_files().files if each.sha256)
        with pytest.raises(LoaderError, match="from https to http") as caught:
            list(source.read_range(file, 0, 10))
    assert "BadRedirect" == caught.value.reason
