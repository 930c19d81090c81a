"""Listings by strangers: the largest that is let in, and what is larger, both below 256 MiB for the whole process."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from modelweights_loader.sources.contract import SourceOptions, SourceUnavailableError
from modelweights_loader.sources.objectstore import BucketSource
from tests.servers.answers import serve_answers
from tests.unit.loader.conftest import LOADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from http.server import BaseHTTPRequestHandler
    from pathlib import Path

    Body = bytes | tuple[int, Iterable[bytes]]
    Find = Callable[[str], tuple[Body, dict[str, str]] | None]

MIB = 2**20
LIMIT_BYTES = 256 * MIB
_COMMIT = "a" * 40
_FILES = 100_000
_FOREIGN = ("HF_", "HUGGING", "TRANSFORMERS_", "AWS_")
# The peak is the kernel's for the program alone, see test_memory_use.
_PEAK = """
import os, sys
def leave(code, end=os._exit):
    with open("/proc/self/status") as file:
        peak = next(line.split()[1] for line in file if line.startswith("VmHWM:"))
    print("peak", peak, flush=True)
    end(code)
# The process of a command ends so where a thread is left behind.
os._exit = leave
"""
_MEASURED = f"""
{_PEAK}
from modelweights_loader.cli import main
leave(main())
"""
# Without the requests for each file's size.
_NAMES = f"""
{_PEAK}
from modelweights_loader.fetch.names import check_files
from modelweights_loader.sources.contract import RemoteFile, SourceOptions, digest_listing
from modelweights_loader.sources.objectstore_https import HttpsSource
from modelweights_loader.sources.objectstore_https_names import find_names
names = find_names(HttpsSource(sys.argv[1], SourceOptions()), "")
files = tuple(RemoteFile(name, 1, names.sha256.get(name, ""), version="1") for name in names.required)
check_files(files)
print(len(files), digest_listing(files))
leave(0)
"""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    peak_bytes: int
    said: str


def run(*arguments: str, program: str = _MEASURED, **environment: str) -> Ended:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().endswith("_PROXY") and not name.startswith(_FOREIGN)
    }
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**kept, "PYTHONPATH": str(LOADER), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    peak = int(ended.stdout.split()[-1]) * 1024
    print(f"{peak / MIB:.0f} MiB, {ended.stderr.strip()[-300:]}")
    return Ended(ended.returncode, peak, ended.stdout + ended.stderr)


@contextmanager
def serve(find: Find) -> Iterator[str]:
    """Answers what `find` gives for a path: a body, or a length with pieces; None is 404."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        found = find(request.path)
        body, headers = found or (b"", {})
        length, pieces = (len(body), [body]) if isinstance(body, bytes) else body
        request.send_response(404 if found is None else 200)
        for name, value in {"Content-Length": str(length), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        try:
            for piece in pieces if request.command == "GET" else ():
                request.wfile.write(piece)
        except OSError:
            request.close_connection = True

    with serve_answers(answer) as url:
        yield url


def name(number: int, length: int = 160, letter: str = "n") -> str:
    """Of a file, unlike all others."""
    return f"{number:06}{letter * (length - 11)}.json"


# --- the hub ----------------------------------------------------------------------------------------------------------


def hub(entries: int, *, length: int = 160, named: bool = False) -> Find:
    """A repository of so many files, in pages of 1000; all may be named in the answer before."""

    def find(path: str) -> tuple[Body, dict[str, str]] | None:
        if "/revision/" in path:
            siblings = [{"rfilename": name(number, 40)} for number in range(entries if named else 1)]
            return json.dumps({"id": "o/n", "sha": _COMMIT, "gated": False, "siblings": siblings}).encode(), {}
        if "/tree/" not in path:
            return None
        begin = int(path.rpartition("begin=")[2]) if "begin=" in path else 0
        page = [
            {"type": "file", "oid": f"{number:040x}", "size": 9, "path": name(number, length)}
            for number in range(begin, min(begin + 1000, entries))
        ]
        following = f'<http://{{host}}{path.partition("?")[0]}?recursive=true&begin={begin + 1000}>; rel="next"'
        headers = {"Link": following} if begin + 1000 < entries else {}
        return json.dumps(page).encode(), headers

    return find


def with_host(find: Find, place: list[str]) -> Find:
    """Links are absolute."""

    def found(path: str) -> tuple[Body, dict[str, str]] | None:
        answer = find(path)
        if answer is None:
            return None
        host = place[0].partition("://")[2]
        return answer[0], {key: value.replace("{host}", host) for key, value in answer[1].items()}

    return found


def hub_bomb(text: bytes, where: str) -> Find:
    """An answer of 16 MiB that is much more once it is parsed."""
    body = b"[" + text * ((16 * MIB - 2) // len(text)) + b"0]"
    honest = hub(5)

    def find(path: str) -> tuple[Body, dict[str, str]] | None:
        return (body, {}) if where in path else honest(path)

    return find


@pytest.mark.parametrize(
    ("find", "code", "reason"),
    [
        (hub(_FILES, named=True), 0, ""),
        (hub(_FILES, length=2000), 20, "names of more than"),
        (hub_bomb(b'{"a":1},', "/revision/"), 20, "of memory, more than"),
    ],
    ids=["largest", "long names", "objects"],
)
def test_hub(find: Find, code: int, reason: str, tmp_path: Path) -> None:
    place: list[str] = []
    with serve(with_host(find, place)) as url:
        place.append(url)
        ended = run("resolve", str(tmp_path / "home"), "--source", "hf://o/n", "--endpoint", url)
    assert (code, True) == (ended.code, reason in ended.said)
    assert LIMIT_BYTES >= ended.peak_bytes


# --- web servers ------------------------------------------------------------------------------------------------------


def web(documents: dict[str, bytes]) -> Find:
    """Has these documents, and any other file that is no folder and not looked for by its usual name."""
    usual = {"manifest.json", "SHA256SUMS", "sha256sum.txt", "model.safetensors.index.json", "model.safetensors"}

    def find(path: str) -> tuple[Body, dict[str, str]] | None:
        leaf = path.rpartition("/")[2]
        if leaf in documents:
            kind = "application/json" if documents[leaf][:1] in b"[{" else "text/plain"
            return documents[leaf], {"Content-Type": kind, "ETag": '"1"'}
        return None if leaf in usual or not leaf else (b"x", {"ETag": '"1"'})

    return find


def index(count: int, length: int = 160) -> bytes:
    return json.dumps([{"name": name(number, length), "type": "file", "size": 1} for number in range(count)]).encode()


def sums(count: int, length: int, letter: str = "n") -> bytes:
    return b"".join(b"%064x  %s\n" % (number, name(number, length, letter).encode()) for number in range(count))


@pytest.mark.parametrize(
    ("document", "content", "count"),
    [
        ("", index(72_000, 150), 72_000),
        ("SHA256SUMS", sums(50_000, 66, "\U0001f600"), 50_000),
        ("SHA256SUMS", sums(99_900, 90), 99_900),
    ],
    ids=["index", "wide sums", "sums"],
)
def test_largest_lists_of_a_web_server(document: str, content: bytes, count: int) -> None:
    with serve(web({document: content})) as url:
        ended = run(f"{url}/m/", program=_NAMES)
    assert (0, True) == (ended.code, int(ended.said.split()[0]) >= count)
    assert LIMIT_BYTES >= ended.peak_bytes


# --- buckets ----------------------------------------------------------------------------------------------------------


def bucket(entries: int, length: int = 160) -> Find:
    """Objects in pages of 1000."""

    def find(path: str) -> tuple[Body, dict[str, str]] | None:
        if "list-type=2" not in path:
            return None
        begin = int(path.partition("continuation-token=")[2].partition("&")[0] or 0)
        end = min(begin + 1000, entries)
        keys = b"".join(_entry(f"m/{name(number, length)}") for number in range(begin, end))
        return _page(keys, str(end) if end < entries else ""), {"Content-Type": "application/xml"}

    return find


def _entry(key: str) -> bytes:
    return (
        f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;{'0' * 32}&quot;</ETag><Size>9</Size></Contents>"
    ).encode()


def _page(entries: bytes, following: str) -> bytes:
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{following}</NextContinuationToken>"
    tail = more if following else "<IsTruncated>false</IsTruncated>"
    return b"<ListBucketResult><Name>b</Name>" + entries + tail.encode() + b"</ListBucketResult>"


def endless_page(_path: str) -> tuple[Body, dict[str, str]]:
    piece = b"".join(_entry(f"m/{name(number)}") for number in range(4000))
    # Of 2**40 bytes obstore would ask the system at once, and be ended by that.
    return (2**34, itertools.chain([b"<ListBucketResult>"], itertools.repeat(piece))), {
        "Content-Type": "application/xml"
    }


@pytest.mark.parametrize(
    ("find", "code", "reason"),
    [
        (bucket(_FILES, 150), 0, ""),
        (bucket(_FILES, 900), 20, "names of more than"),
        (endless_page, 20, "answers to a list with so much"),
    ],
    ids=["largest", "long names", "endless page"],
)
def test_bucket(find: Find, code: int, reason: str, tmp_path: Path) -> None:
    with serve(find) as url:
        options = ("--endpoint", url, "--path-style", "--region", "x", "--anonymous")
        ended = run("resolve", str(tmp_path / "home"), "--source", "s3://b/m", *options)
    assert (code, True) == (ended.code, reason in ended.said)
    assert LIMIT_BYTES >= ended.peak_bytes


def test_bucket_with_pages_without_an_end_and_without_an_object() -> None:
    with serve(lambda _path: (_page(b"", "again"), {"Content-Type": "application/xml"})) as url:
        options = SourceOptions(endpoint=url, path_style=True, region="x", anonymous=True, stall_seconds=0.2)
        source = BucketSource("s3://b/m", options)
        with pytest.raises(SourceUnavailableError, match="lists not one object"):
            source.list_files()


# --- the checkpoint's index -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensors", "code", "reason"),
    [(1_000_000, 0, ""), (1_300_000, 30, "an index that is fetched has at most")],
    ids=["largest", "more"],
)
def test_index_of_a_checkpoint(tensors: int, code: int, reason: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model-1.safetensors").write_bytes(b"x")
    rows = ",".join(f'"layers.{number:08}":"model-1.safetensors"' for number in range(tensors))
    (source / "model.safetensors.index.json").write_text(f'{{"weight_map":{{{rows}}}}}')
    ended = run("fetch", str(tmp_path / "home"), "--source", f"file://{source}", "--disk-reserve", "0")
    assert (code, True) == (ended.code, reason in ended.said)
    assert LIMIT_BYTES >= ended.peak_bytes
