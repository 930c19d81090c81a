"""Google's and Azure's stores as their emulators show them; no real one was ever asked."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import pytest

from modelweights_loader.errors import WillNotWorkError
from modelweights_loader.sources.contract import SourceChangedError, SourceOptions
from tests.servers.emulators import AZURE_ACCOUNT, AZURE_KEY, AzureEmulator, GoogleEmulator
from tests.unit.loader.sources.objectstore.opening import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT = b"0123456789" * 1_200_000
SUMS = f"{hashlib.sha256(CONTENT).hexdigest()}  model.safetensors\n".encode()


@pytest.fixture(scope="module")
def google() -> Iterator[GoogleEmulator]:
    with GoogleEmulator() as server:
        yield server


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureEmulator]:
    with AzureEmulator() as server:
        yield server


@pytest.fixture(params=["gs", "az"])
def store(request: pytest.FixtureRequest) -> tuple[str, GoogleEmulator | AzureEmulator, SourceOptions]:
    """Scheme, server, and the options for it."""
    if request.param == "gs":
        google: GoogleEmulator = request.getfixturevalue("google")
        folder = google.credentials(GOOGLE_SERVICE_ACCOUNT_KEY=google.key())
        return "gs", google, SourceOptions(endpoint=google.url, credentials_dir=folder)
    azure: AzureEmulator = request.getfixturevalue("azure")
    keys = {"AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}
    return "az", azure, SourceOptions(endpoint=azure.url, credentials_dir=azure.credentials(**keys))


def test_lists_and_ranges(store: tuple[str, GoogleEmulator | AzureEmulator, SourceOptions]) -> None:
    scheme, server, options = store
    server.make_bucket("lists")
    for key, content in (
        ("m/model.safetensors", CONTENT),
        ("m/sub/a b.json", b"{}"),
        ("m/SHA256SUMS", SUMS),
        ("m2/x", b"x"),
    ):
        server.put("lists", key, content)
    source = open_source(f"{scheme}://lists/m", options)

    files = {file.path: file for file in source.list_files().files}
    weights = files["model.safetensors"]
    ends = (5_000_000, weights.size_bytes)
    pieces = [b"".join(source.read_range(weights, *each)) for each in ((0, ends[0]), ends)]

    assert {"model.safetensors", "sub/a b.json", "SHA256SUMS"} == set(files)
    assert hashlib.sha256(CONTENT).hexdigest() == weights.sha256
    assert CONTENT == b"".join(pieces)
    assert b"{}" == b"".join(source.read_range(files["sub/a b.json"], 0, 2))


def test_an_object_that_changes_is_never_mixed(
    store: tuple[str, GoogleEmulator | AzureEmulator, SourceOptions],
) -> None:
    scheme, server, options = store
    server.make_bucket("changes")
    server.put("changes", "m/x", b"0123456789")
    source = open_source(f"{scheme}://changes/m", options)
    [file] = source.list_files().files
    assert b"01234" == b"".join(source.read_range(file, 0, 5))
    server.put("changes", "m/x", b"9876543210")

    with pytest.raises(SourceChangedError):
        list(source.read_range(file, 5, 10))


def test_a_container_that_is_not_there(azure: AzureEmulator) -> None:
    keys = {"AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}
    options = SourceOptions(endpoint=azure.url, credentials_dir=azure.credentials(**keys))

    with pytest.raises(WillNotWorkError) as caught:
        open_source("az://nowhere/m", options).list_files()
    assert "BucketNotFound" == caught.value.reason


def test_a_wrong_key(azure: AzureEmulator) -> None:
    wrong = base64.b64encode(b"hunter2" * 9).decode()
    keys = {"AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": wrong}
    options = SourceOptions(endpoint=azure.url, credentials_dir=azure.credentials(**keys))

    with pytest.raises(WillNotWorkError, match="AuthorizationFailure") as caught:
        open_source("az://nowhere/m", options).list_files()
    assert "Forbidden" == caught.value.reason
    assert wrong not in str(caught.value)


def test_without_credentials(azure: AzureEmulator) -> None:
    with pytest.raises(WillNotWorkError) as caught:
        open_source("az://nowhere/m", SourceOptions(endpoint=azure.url, anonymous=True)).list_files()
    assert "Unauthorized" == caught.value.reason
