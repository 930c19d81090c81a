"""Each refusal of a hub has its own reason, its exit code and a remedy in one line."""

from __future__ import annotations

import email.message
import socket
import traceback
from email.utils import formatdate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from modelweights_loader.errors import LoaderError, UsageError
from modelweights_loader.sources import bounds, hub_listing
from modelweights_loader.sources.contract import RemoteFile, SourceOptions, SourceUnavailableError
from modelweights_loader.sources.http_errors import read_retry_after
from modelweights_loader.sources.huggingface import HuggingFaceSource
from tests.servers.hub import Fault, Hub
from tests.servers.repositories import NAME, WEIGHTS, make_repository

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType

    from tests.unit.loader.sources.huggingface.conftest import OpenHub

TOKEN = "hf_SecretSecretSecret"  # noqa: S105 - of the test's hub
MAY: dict[str, Any] = {TOKEN: [NAME]}
MAY_NOT: dict[str, Any] = {TOKEN: []}
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Refused(NamedTuple):
    """A row: what the hub is like, what was asked, and how it has to end."""

    reason: str
    code: int
    words: str
    repository: Mapping[str, Any] = NOTHING
    settings: Mapping[str, Any] = NOTHING
    token: str | None = None
    options: Mapping[str, Any] = NOTHING
    name: str = NAME
    fault: Fault | None = None


REFUSALS = {
    "no such repository, without a token": Refused("RepositoryNotFound", 20, "doesn't tell a private one", name="org/no"),
    "no such repository": Refused("RepositoryNotFound", 20, "check the name", name="org/no", settings={"tokens": MAY}, token=TOKEN),
    "private, without a token": Refused("RepositoryNotFound", 20, "--token-file", {"private": True}),
    "private, not for this token": Refused("RepositoryNotFound", 20, "whether the token may read it", {"private": True}, {"tokens": MAY_NOT}, TOKEN),
    "a mirror that wants a token": Refused("Unauthorized", 20, "asks for a token", fault=Fault("api", "status", status=401)),
    "a token that is refused": Refused("Unauthorized", 20, "put a new one there", token=TOKEN),
    "gated, without a token": Refused("Gated", 20, "accept the terms at", {"gated": True}),
    "gated, terms not accepted": Refused("Gated", 20, "make sure that the token is of that account", {"gated": True}, {"tokens": MAY_NOT}, TOKEN),
    "a token without the right": Refused("Forbidden", 20, "the right to read", {}, {"tokens": MAY, "forbidden": MAY}, TOKEN),
    "no such branch": Refused("RevisionNotFound", 20, "no revision 'nope'", options={"revision": "nope"}),
    "no such commit": Refused("RevisionNotFound", 20, "check the branch", options={"revision": "0" * 40}),
    "no name of a repository": Refused("Usage", 2, "write org/name", name="org/na me"),
    "busy": Refused("SourceUnavailable", 10, "busy or away (status 503)", fault=Fault("api", "status")),
    "too many requests": Refused("SourceUnavailable", 10, "limits requests", fault=Fault("api", "status", status=429)),
    "no hub at all": Refused("BadListing", 20, "check the endpoint", fault=Fault("api", "status", status=200)),
    "a redirect without an end": Refused("BadListing", 20, "check the endpoint", fault=Fault("api", "status", status=302, headers=(("Location", "/api/models/x"),))),
}  # fmt: skip


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in REFUSALS.items()])
def test_a_listing_that_is_refused(tmp_path: Path, open_hub: OpenHub, row: Refused) -> None:
    make_repository(tmp_path / "hub", **row.repository)
    options = dict(row.options)
    if row.token is not None:
        (tmp_path / "token").write_text(row.token)
        options["token_file"] = str(tmp_path / "token")
    with Hub(tmp_path / "hub") as hub:
        hub.settings.update(row.settings)
        hub.set_faults(*([row.fault] if row.fault else []))
        with pytest.raises(LoaderError) as caught:
            open_hub(hub, row.name, **options).list_files()
    error = caught.value
    assert (row.reason, row.code, row.code == 10) == (error.reason, error.exit_code, error.retry)
    assert row.words in error.message
    assert "\n" not in error.message
    assert TOKEN not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("where", "status", "reason", "retry"),
    [
        ("resolve", 404, "NotFound", "ends"),
        ("resolve", 403, "Forbidden", "ends"),
        ("resolve", 401, "Unauthorized", "ends"),
        ("resolve", 418, "SourceRefused", "ends"),
        ("resolve", 429, "SourceUnavailable", "again"),
        ("resolve", 500, "SourceUnavailable", "again"),
        ("data", 503, "SourceUnavailable", "again"),
        ("data", 429, "SourceUnavailable", "again"),
        ("data", 403, "Forbidden", "ends"),
        ("data", 418, "Forbidden", "ends"),
    ],
)
@pytest.mark.parametrize("known", ["first range", "known link"])
def test_a_range_that_is_refused(
    hub: Hub, open_hub: OpenHub, where: str, status: int, reason: str, retry: str, known: str
) -> None:
    source = open_hub(hub)
    file = next(each for each in source.list_files().files if each.path == WEIGHTS)
    if known == "known link":
        list(source.read_range(file, 0, 10))
        if where == "resolve":
            hub.expire_links()
    hub.set_faults(Fault(where, "status", status=status, headers=(("Retry-After", "7"),)))
    with pytest.raises(LoaderError) as caught:
        list(source.read_range(file, 10, 20))
    error = caught.value
    assert (reason, retry) == (error.reason, "again" if error.retry else "ends")
    assert retry == "ends" or 7 == getattr(error, "retry_after_seconds", None)
    assert "X-Signature" not in "".join(traceback.format_exception(error))


def test_a_file_that_the_commit_lacks(hub: Hub, open_hub: OpenHub) -> None:
    source = open_hub(hub)
    commit = source.list_files().revision
    with pytest.raises(LoaderError, match=r"no file 'gone\.json'") as caught:
        list(source.read_range(RemoteFile("gone.json", 10, version=commit), 0, 10))
    assert "NotFound" == caught.value.reason


@pytest.mark.parametrize(
    ("place", "limit", "value", "reason"),
    [
        (bounds, "MAX_FILES", 4, "TooManyFiles"),
        (bounds, "MAX_NAMES_BYTES", 40, "TooManyFiles"),
        (bounds, "MAX_PARSED_BYTES", 400, "BadListing"),
        (hub_listing, "_MAX_PAGES", 4, "TooManyFiles"),
        (hub_listing, "_MAX_PAGE_BYTES", 100, "BadListing"),
    ],
)
def test_a_listing_without_bounds(
    hub: Hub, open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch, place: ModuleType, limit: str, value: int, reason: str
) -> None:
    hub.settings["pageSize"] = 1
    monkeypatch.setattr(place, limit, value)
    with pytest.raises(LoaderError) as caught:
        open_hub(hub).list_files()
    assert (reason, 20) == (caught.value.reason, caught.value.exit_code)


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "x", "size": -1, "oid": "0" * 40},
        {"path": "x", "size": "9", "oid": "0" * 40},
        {"path": "x", "size": True, "oid": "0" * 40},
        {"path": 7, "size": 9, "oid": "0" * 40},
        {"path": "x", "size": 9, "oid": "none"},
        {"path": "x", "size": 9, "oid": "0" * 40, "lfs": {"oid": "none", "size": 9, "pointerSize": 1}},
        {"path": "x", "size": 9, "oid": "0" * 40, "lfs": {"oid": "0" * 64, "pointerSize": 1}},
        {"path": "x", "oid": "0" * 40},
        {"size": 9, "oid": "0" * 40},
        "x",
    ],
)
def test_a_listing_that_is_malformed(hub: Hub, open_hub: OpenHub, entry: object) -> None:
    hub.settings["entries"] = [{"type": "file", **entry} if isinstance(entry, dict) else entry]
    with pytest.raises(LoaderError) as caught:
        open_hub(hub).list_files()
    assert ("BadListing", 20) == (caught.value.reason, caught.value.exit_code)


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"Retry-After": "120"}, 120),
        ({"Retry-After": " 0 "}, 0),
        ({"Retry-After": formatdate(NOW + 90, usegmt=True)}, 90),
        ({"Retry-After": formatdate(NOW - 90, usegmt=True)}, 0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "9" * 400}, 86400),
        ({"RateLimit": '"api";r=0;t=55'}, 55),
        ({"RateLimit": '"api";r=12;t=55'}, None),
        ({"RateLimit": '"resolvers";r=0;t=55', "Retry-After": "7"}, 7),
    ],
)
def test_how_long_a_hub_asks_to_wait(headers: dict[str, str], expected: float | None) -> None:
    message = email.message.Message()
    for name, value in headers.items():
        message[name] = value
    assert expected == read_retry_after(message, NOW)


@pytest.mark.parametrize(("content", "words"), [(None, "there is no token in"), ("  \n", "is empty"), ("a b", "holds no token")])  # fmt: skip
def test_a_secret_that_is_missing_names_its_file(hub: Hub, open_hub: OpenHub, tmp_path: Path, content: str | None, words: str) -> None:  # fmt: skip
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    with pytest.raises(LoaderError, match=words) as caught:
        open_hub(hub, token_file=str(token)).list_files()
    assert "SecretMissing" == caught.value.reason
    assert str(token) in caught.value.message
    assert not hub.requests


def test_the_environments_offline_mode_is_said(hub: Hub, open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch) -> None:
    # The library reads the variable when it is imported, which may be long ago in this process.
    from huggingface_hub import constants  # noqa: PLC0415 - see above

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(LoaderError, match="HF_HUB_OFFLINE") as caught:
        open_hub(hub).list_files()
    assert ("Offline", 20) == (caught.value.reason, caught.value.exit_code)


@pytest.mark.parametrize("endpoint", ["ftp://hub.test", "hub.test", "http://user:pass@hub.test", "http://hub.test:x"])
def test_an_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(UsageError) as caught:
        HuggingFaceSource(NAME, SourceOptions(endpoint=endpoint))
    assert "pass@" not in caught.value.message


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        source = HuggingFaceSource(NAME, SourceOptions(endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}"))
        with pytest.raises(SourceUnavailableError, match=r"ECONNREFUSED.*; check the endpoint and the proxy settings"):
            source.list_files()


def test_a_host_without_an_address() -> None:
    # RFC 6761: names below `invalid` never exist.
    source = HuggingFaceSource(NAME, SourceOptions(endpoint="http://hub.invalid"))
    with pytest.raises(SourceUnavailableError, match="the name can't be resolved"):
        source.list_files()
