"""A repository is listed once and read from that commit: real files, the library's own client as a witness."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from modelweights_loader.errors import LoaderError
from modelweights_loader.sources.contract import SourceUnavailableError
from tests.checkpoints.real import make_real
from tests.checkpoints.split import make_split
from tests.polling import wait_for
from tests.servers.hub import Fault, Hub
from tests.servers.repositories import NAME, WEIGHTS, is_vouched, make_repository, read_whole

if TYPE_CHECKING:
    from modelweights_loader.sources.contract import RemoteFile
    from modelweights_loader.sources.huggingface import HuggingFaceSource
    from tests.unit.loader.sources.huggingface.conftest import OpenHub

STORAGE_OF_TWO = f"data /repos/{NAME}/two/{WEIGHTS}"
STORAGE = f"data /repos/{NAME}/one/{WEIGHTS}"


def find(source: HuggingFaceSource, path: str = WEIGHTS) -> RemoteFile:
    return next(each for each in source.list_files().files if each.path == path)


def count_resolved(hub: Hub, path: str = WEIGHTS) -> int:
    return sum(count for what, count in hub.requests.items() if "/resolve/" in what and what.endswith(path))


def test_a_real_checkpoint_travels_in_ranges_and_threads(open_hub: OpenHub, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    folder = make_split(make_real(tmp_path / "real"), root / NAME / "one")
    (root / NAME / "hub.json").write_text('{"refs": {"main": "one"}}')
    with Hub(root) as hub, ThreadPoolExecutor(4) as pool:
        source = open_hub(hub)
        listing = source.list_files()
        fetched = dict(
            zip(
                [file.path for file in listing.files],
                pool.map(lambda file: read_whole(source, file, 3), listing.files),
                strict=True,
            )
        )
        source.close()
    expected = {each.relative_to(folder).as_posix(): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    assert expected == fetched
    assert all(is_vouched(file, fetched[file.path]) for file in listing.files)
    assert {True} == {bool(file.sha256) for file in listing.files if file.path.endswith(".safetensors")}


@pytest.mark.parametrize("cache", [False, True], ids=["direct", "by the resolve cache"])
def test_the_librarys_own_client_gets_the_same_files_from_the_test_hub(
    open_hub: OpenHub, hub: Hub, tmp_path: Path, cache: object
) -> None:
    """Else the hub of the tests would only agree with ourselves."""
    hub.settings.update({"resolveCache": cache, "pageSize": 2})
    program = "import huggingface_hub, sys; huggingface_hub.snapshot_download(sys.argv[1], local_dir=sys.argv[2])"
    run_library(hub, tmp_path, program, NAME, str(tmp_path / "out"))
    source = open_hub(hub)
    for file in source.list_files().files:
        assert (tmp_path / "out" / file.path).read_bytes() == read_whole(source, file)


def test_the_librarys_own_client_understands_the_refusals_of_the_test_hub(tmp_path: Path) -> None:
    root = tmp_path / "hub"
    make_repository(root)
    make_repository(root, name="org/gated", gated=True)
    make_repository(root, name="org/private", private=True)
    program = """
import sys
from huggingface_hub import hf_hub_download
for name, file, revision in [["org/name", "gone", "main"], ["org/name", "config.json", "nope"],
    ["org/gated", "config.json", "main"], ["org/private", "config.json", "main"], ["org/none", "config.json", "main"]]:
    try:
        hf_hub_download(name, file, revision=revision)
    except Exception as error:
        print(type(error).__name__)
"""
    with Hub(root) as hub:
        printed = run_library(hub, tmp_path, program).split()
    expected = ["RemoteEntryNotFoundError", "RevisionNotFoundError", "GatedRepoError"]
    assert [*expected, "RepositoryNotFoundError", "RepositoryNotFoundError"] == printed


def run_library(hub: Hub, tmp_path: Path, program: str, *arguments: str) -> str:
    """Run a program with huggingface_hub; it reads its settings when it is imported."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", program, *arguments]
    ran = subprocess.run(command, env=environment, check=False, timeout=60, capture_output=True, text=True)
    assert 0 == ran.returncode, ran.stderr
    return ran.stdout


def test_the_hub_of_the_tests_runs_alone_from_its_one_file(open_hub: OpenHub, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    make_repository(root, refs={"main": "one", "next": "two"})
    place = Path(__file__).resolve().parents[4] / "servers" / "hub.py"
    # Under that name it answers as in a pod, where it doesn't know how it is called.
    ports = ["--port", "0", "--data-port", "0", "--name", "0.0.0.0"]  # noqa: S104 - listens on loopback
    command = [sys.executable, "-I", str(place), "--root", str(root), *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1].replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - see above
        try:
            before = open_hub(None, endpoint=url).list_files().revision
            ask(f"{url}/-/refs/{NAME}", {"main": "two"})
            source = open_hub(None, endpoint=url)
            after = source.list_files()
            for file in after.files:
                assert is_vouched(file, read_whole(source, file, 2))
            ask(f"{url}/-/settings", {"faults": [{"where": "api", "kind": "status", "status": 503}]})
            with pytest.raises(SourceUnavailableError):
                source.list_files()
            counted = ask(f"{url}/-/counters")
        finally:
            process.terminate()
    assert before != after.revision
    assert next(each.size_bytes for each in after.files if each.path == WEIGHTS) == counted["bytes"][STORAGE_OF_TWO]


def ask(url: str, body: object = None) -> dict[str, Any]:
    """Ask the hub's own entries: POST with a body, else GET."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(url, data, timeout=10) as answer:  # noqa: S310 - loopback
        answered: dict[str, Any] = json.load(answer)
    return answered


@pytest.mark.parametrize("cache", [False, True])
def test_files_outside_of_lfs_come_with_or_without_a_detour(open_hub: OpenHub, hub: Hub, cache: object) -> None:
    hub.settings["resolveCache"] = cache
    source = open_hub(hub)
    for file in source.list_files().files:
        assert is_vouched(file, read_whole(source, file, 2))


def test_a_listing_comes_in_pages(open_hub: OpenHub, hub: Hub) -> None:
    hub.settings["pageSize"] = 2
    listing = open_hub(hub).list_files()
    paths = ["a b/ü %20?#&;.txt", "config.json", "empty.txt", "model.safetensors", "tokenizer.json"]
    assert paths == sorted(file.path for file in listing.files)
    assert {listing.revision} == {file.version for file in listing.files}
    assert NAME == listing.name
    assert 3 == sum(count for what, count in hub.requests.items() if "/tree/" in what)


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_every_file_is_read_exactly(open_hub: OpenHub, hub: Hub, parts: int) -> None:
    source = open_hub(hub)
    for file in source.list_files().files:
        content = (hub.root / NAME / "one" / file.path).read_bytes()
        assert content == read_whole(source, file, parts)
        assert is_vouched(file, content)


def test_branch_tag_commit_and_the_beginning_of_one_lead_to_the_commit(open_hub: OpenHub, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    make_repository(root, refs={"main": "one", "v1.0": "two", "refs/pr/1": "two"})
    with Hub(root) as hub:
        one, two = (hub.commit_of(root / NAME / each) for each in ("one", "two"))
        asked = {"": one, "main": one, "v1.0": two, "refs/pr/1": two, two: two, two[:8]: two}
        found = {revision: open_hub(hub, revision=revision).list_files().revision for revision in asked}
    assert asked == found
    assert one != two


def test_a_branch_that_moves_in_mid_run_changes_nothing(open_hub: OpenHub, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    make_repository(root, refs={"main": "one", "next": "two"})
    old, new = ((root / NAME / each / WEIGHTS).read_bytes() for each in ("one", "two"))
    with Hub(root) as hub:
        source = open_hub(hub)
        file = find(source)
        middle = file.size_bytes // 2
        first = b"".join(map(bytes, source.read_range(file, 0, middle)))
        hub.refs[NAME] = {"main": "two"}
        hub.expire_links()
        second = b"".join(map(bytes, source.read_range(file, middle, file.size_bytes)))
        later = read_whole(source, find(source))
    assert old == first + second
    assert new == later
    assert old != new


def test_the_signed_link_of_a_file_is_asked_for_once_by_many_threads(open_hub: OpenHub, hub: Hub) -> None:
    source = open_hub(hub)
    file = find(source)
    with ThreadPoolExecutor(8) as pool:
        bounds = [file.size_bytes * number // 16 for number in range(17)]
        parts = list(
            pool.map(lambda each: b"".join(map(bytes, source.read_range(file, *each))), itertools.pairwise(bounds))
        )
    assert (hub.root / NAME / "one" / WEIGHTS).read_bytes() == b"".join(parts)
    assert 1 == count_resolved(hub)
    assert 16 == hub.requests[STORAGE]


def test_a_link_whose_time_is_over_is_asked_for_again_once(open_hub: OpenHub, hub: Hub) -> None:
    source = open_hub(hub)
    file = find(source)
    half = file.size_bytes // 2
    content = b"".join(map(bytes, source.read_range(file, 0, half)))
    hub.expire_links()
    content += b"".join(map(bytes, source.read_range(file, half, file.size_bytes)))
    assert (hub.root / NAME / "one" / WEIGHTS).read_bytes() == content
    assert (1, 2) == (hub.requests["expired link"], count_resolved(hub))


def test_a_link_is_good_for_every_range_since_it_is_asked_for_without_one(open_hub: OpenHub, hub: Hub) -> None:
    """The hub binds a link to the range that it was asked for with; a whole file has a link of its own."""
    source = open_hub(hub)
    file = find(source)
    for parts in (1, 5, 1):
        assert is_vouched(file, read_whole(source, file, parts))
    assert 0 == hub.requests["expired link"]
    assert 3 == count_resolved(hub)


def test_a_mirror_that_knows_no_head_is_read_all_the_same(open_hub: OpenHub, hub: Hub) -> None:
    source = open_hub(hub)
    for path in (WEIGHTS, "tokenizer.json"):
        file = find(source, path)
        hub.set_faults(Fault("resolve", "status", status=405, times=1))
        assert is_vouched(file, read_whole(source, file, 3))


def test_a_link_that_is_refused_at_once_is_no_endless_loop(open_hub: OpenHub, hub: Hub) -> None:
    source = open_hub(hub)
    file = find(source)
    hub.settings["linkSeconds"] = -10
    for _ in range(2):
        with pytest.raises(LoaderError, match="refuses a link that the hub has just given") as caught:
            list(source.read_range(file, 1, 9))
        assert ("Forbidden", False) == (caught.value.reason, caught.value.retry)
    assert 2 == count_resolved(hub)


def test_the_token_goes_to_the_hub_alone_and_is_read_anew_each_time(open_hub: OpenHub, tmp_path: Path) -> None:
    make_repository(tmp_path / "hub", private=True, gated=True)
    token = tmp_path / "token"
    token.write_text("hf_first\n")
    with Hub(tmp_path / "hub") as hub:
        hub.settings["tokens"] = {"hf_first": [NAME]}
        source = open_hub(hub, token_file=str(token))
        file = find(source)
        first = b"".join(map(bytes, source.read_range(file, 0, 1000)))
        hub.settings["tokens"] = {"hf_second": [NAME]}
        hub.expire_links()
        token.write_text("hf_second")
        second = b"".join(map(bytes, source.read_range(file, 1000, file.size_bytes)))
        assert (hub.root / NAME / "one" / WEIGHTS).read_bytes() == first + second
        assert 3 == hub.requests[STORAGE]
        assert 0 == hub.requests["token at the storage"]


def test_a_listing_that_leads_to_another_host_takes_no_token_along(open_hub: OpenHub, tmp_path: Path) -> None:
    make_repository(tmp_path / "hub")
    token = tmp_path / "token"
    token.write_text("hf_first")
    with Hub(tmp_path / "hub") as hub, Hub(tmp_path / "hub") as other:
        hub.settings["tokens"] = other.settings["tokens"] = {"hf_first": [NAME]}
        location = f"{other.url}/api/models/{NAME}/revision/main"
        hub.set_faults(Fault("api", "status", "*/revision/*", status=307, headers=(("Location", location),)))
        assert 5 == len(open_hub(hub, token_file=str(token)).list_files().files)
        assert 1 == other.requests["without a token"]
        assert 0 == other.requests["with a token"]
        assert (2, 0) == (hub.requests["with a token"], hub.requests["without a token"])


def test_connections_are_used_again(open_hub: OpenHub, hub: Hub) -> None:
    source = open_hub(hub)
    for file in source.list_files().files:
        read_whole(source, file, 3)
    # One to the hub, one to the storage.
    assert 2 == hub.connections


def test_a_connection_that_the_server_has_closed_is_no_error(open_hub: OpenHub, hub: Hub) -> None:
    source = open_hub(hub)
    file = find(source, "config.json")
    read_whole(source, file)
    hub.end_connections()
    assert is_vouched(file, read_whole(source, file))


def test_closing_the_iterator_ends_the_transfer_and_nothing_else(open_hub: OpenHub, hub: Hub) -> None:
    source = open_hub(hub)
    file = find(source)
    pieces = source.read_range(file, 0, file.size_bytes)
    assert next(pieces)
    pieces.close()  # type: ignore[attr-defined]  # a generator
    assert is_vouched(file, read_whole(source, file))


def test_close_ends_a_read_that_waits(open_hub: OpenHub, hub: Hub) -> None:
    source = open_hub(hub)
    file = find(source)
    hub.set_faults(Fault("data", "stall", after=0))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: list(source.read_range(file, 0, 100)))
        assert wait_for(lambda: hub.requests[STORAGE] == 1)
        source.close()
        with pytest.raises(SourceUnavailableError):
            reading.result(timeout=10)


def test_nothing_is_written_and_nothing_is_said(hub: Hub, tmp_path: Path) -> None:
    """The library would keep a cache, draw bars, warn, and ask other services, all without being asked."""
    home = tmp_path / "home"
    home.mkdir()
    hub.settings["pageSize"] = 2
    program = (
        "import sys; from modelweights_loader.sources.huggingface import HuggingFaceSource as S;"
        "from modelweights_loader.sources.contract import SourceOptions as O;"
        "s = S(sys.argv[1], O(endpoint=sys.argv[2])); l = s.list_files();"
        "[b''.join(map(bytes, s.read_range(f, 0, f.size_bytes))) for f in l.files]"
    )
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "HF_DEBUG": "1", "TMPDIR": str(home)}
    loader = Path(__file__).resolve().parents[5] / "loader"
    command = [sys.executable, "-W", "error", "-c", program, NAME, hub.url]
    ran = subprocess.run(
        command, env={**environment, "PYTHONPATH": str(loader)}, timeout=60, capture_output=True, check=False
    )
    assert (0, b"", b"") == (ran.returncode, ran.stdout, ran.stderr)
    assert [] == list(home.iterdir())
    asked = {what.split()[2].split("/")[1] for what in hub.requests if what.startswith("hub ")}
    assert {"api", "org"} == asked
