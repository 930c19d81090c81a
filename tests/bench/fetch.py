"""`fetch` beside rclone and beside the library that it uses, from an S3 server on loopback. Called by `__main__`."""

import argparse
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from modelweights_loader.quantity import parse_bytes
from tests.bench.figures import GOALS_HEAD, MIB, make_table, ratio, say, spread, start_result, verdict
from tests.bench.processes import LOADER, PROGRAMS, PYTHON, Cost, measure
from tests.bench.scratch import make_scratch, make_set
from tests.debian import Tool, ensure
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

_BUCKET: Final = "models"
_SHARDS: Final = 8
_SMALL_BYTES: Final = 4096
_RCLONE: Final = Tool("rclone", "rclone")
_HASH: Final = (
    "import hashlib, pathlib, sys; from concurrent.futures import ThreadPoolExecutor as P;"
    "[*P(2).map(lambda path: hashlib.file_digest(open(path, 'rb'), 'sha256').hexdigest(),"
    " [path for path in pathlib.Path(sys.argv[1]).rglob('*') if path.is_file()])]"
)
_SETS: Final = {"large": "{size} MiB in 8 files", "small": "{files} files of 4 KiB"}
_NAMES: Final = {
    "loader": "`fetch`: hashed, on the disk, in the page cache, published",
    "rclone": "`rclone copy`, 8 at a time, as it comes",
    "rclone disk": "the same, then `sync` of its folder",
    "rclone proven": "the same, then sha256 of every file",
    "library": "obstore, 8 whole files at a time",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=parse_bytes, default=4 * 2**30, help="bytes of the large files (default 4Gi)")
    parser.add_argument("--files", type=int, default=10_000, help="number of small files (default 10000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side (default 3)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All sides take turns, into an empty folder each."""
    ensure([_RCLONE])
    options = {"size_mib": arguments.size // MIB, "files": arguments.files, "rounds": arguments.rounds}
    result = start_result("fetch", {**options, "destination": _name_file_system(arguments.scratch)})
    with S3Server() as server, tempfile.TemporaryDirectory(prefix="modelweights-bench-") as keys:
        environment = _make_environment(server, Path(keys))
        server.make_bucket(_BUCKET)
        result["runs"] = {}
        for name in _SETS:
            with make_scratch(arguments.scratch, 2 * arguments.size) as scratch:
                _upload(name, arguments, scratch / "set", environment)
                if name == "large":
                    shutil.rmtree(scratch / "set")
                runs: dict[str, list[dict[str, Any]]] = {side: [] for side in _NAMES}
                for turn in range(arguments.rounds):
                    for side in ("loader", "rclone", "library"):
                        home = scratch / f"{side}-{turn}"
                        for measured, cost in _measure(side, name, server, home, environment).items():
                            runs[measured].append(cost)
                    say(f"fetch: {name}, round {turn + 1} of {arguments.rounds}")
                result["runs"][name] = runs
    return result


def _name_file_system(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return measure(["stat", "-f", "-c", "%T", str(folder)]).output.strip()


def _make_environment(server: S3Server, keys: Path) -> dict[str, str]:
    """For rclone and the library; for the loader as files."""
    given = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    for name, value in given.items():
        (keys / name).write_text(value)
    return {
        **given,
        "AWS_REGION": REGION,
        "KEYS": str(keys),
        # Debian's rclone refuses to start with one.
        "AWS_CA_BUNDLE": "",
        "RCLONE_CONFIG": str(keys / "none"),
        "RCLONE_CONFIG_S_TYPE": "s3",
        "RCLONE_CONFIG_S_PROVIDER": "Other",
        "RCLONE_CONFIG_S_ENV_AUTH": "true",
        "RCLONE_CONFIG_S_ENDPOINT": server.url,
        "RCLONE_CONFIG_S_REGION": REGION,
    }


def _upload(name: str, arguments: argparse.Namespace, folder: Path, environment: Mapping[str, str]) -> None:
    if name == "large":
        make_set(folder, arguments.size, shards=_SHARDS)
    else:
        make_set(folder, _SMALL_BYTES * 16, shards=1)
        for number in range(arguments.files):
            (folder / f"part-{number:06}.json").write_bytes(os.urandom(_SMALL_BYTES))
    command = ["rclone", "copy", "--transfers", "8", str(folder), f"S:{_BUCKET}/{name}"]
    measure(command, environment=environment)


def _measure(
    side: str, name: str, server: S3Server, home: Path, environment: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    try:
        if side == "loader":
            source = ["--source", f"s3://{_BUCKET}/{name}", "--endpoint", server.url, "--path-style"]
            given = [*source, "--region", REGION, "--credentials-dir", environment["KEYS"], "--disk-reserve", "0"]
            return {side: _show(measure([*LOADER, "fetch", str(home), *given], sample=True))}
        if side == "library":
            program = [PYTHON, str(PROGRAMS / "obstore_get.py"), server.url, _BUCKET, name, str(home)]
            return {side: _show(measure(program, environment=environment, sample=True))}
        command = ["rclone", "copy", "--transfers", "8", f"S:{_BUCKET}/{name}", str(home)]
        copied = measure(command, environment=environment, sample=True)
        synced = measure(["sync", "-f", str(home)])
        hashed = measure([PYTHON, "-c", _HASH, str(home)])
        return {
            "rclone": _show(copied),
            "rclone disk": _show(copied, synced),
            "rclone proven": _show(copied, synced, hashed),
        }
    finally:
        # Small ones stay to the end: ext4 without a journal looks at each inode that was freed within the last minute, and
        # passes it over, for each new file. Whoever came next would pay for what was deleted, 0.3 ms of CPU for each file.
        if name == "large":
            shutil.rmtree(home, ignore_errors=True)
        # What one side left to be written is not to be paid for by the next one.
        measure(["sync", "-f", str(home.parent)])


def _show(*costs: Cost) -> dict[str, Any]:
    return {
        "seconds": round(sum(cost.seconds for cost in costs), 3),
        "cpu_seconds": round(sum(cost.cpu_seconds for cost in costs), 3),
        "max_rss_bytes": max(cost.max_rss_bytes for cost in costs),
        "anonymous_bytes": max(cost.anonymous_bytes for cost in costs),
    }


def make_tables(result: dict[str, Any]) -> dict[str, str]:
    """Name to Markdown."""
    options = result["options"]

    def column(kind: str, side: str, figure: str, unit: float = 1) -> list[float]:
        return [run[figure] / unit for run in result["runs"][kind][side]]

    rows = []
    for kind, words in _SETS.items():
        said = words.format(size=options["size_mib"], files=options["files"])
        rows += [
            (
                f"{said}: {_NAMES[side]}",
                spread(column(kind, side, "seconds")),
                spread(column(kind, side, "cpu_seconds")),
                spread(column(kind, side, "anonymous_bytes", MIB), 0),
                spread(column(kind, side, "max_rss_bytes", MIB), 0),
            )
            for side in _NAMES
        ]
    goals = []
    for kind in _SETS:
        for other, words in (("rclone", "rclone"), ("rclone disk", "rclone with its bytes on the disk too")):
            faster = ratio(column(kind, other, "seconds"), column(kind, "loader", "seconds"))
            goals.append(verdict(f"{kind}: throughput over {words}", faster, 1))
        cheaper = ratio(column(kind, "loader", "cpu_seconds"), column(kind, "rclone", "cpu_seconds"))
        goals.append(verdict(f"{kind}: CPU seconds over rclone", cheaper, 1, at_most=True))
        goals.append(
            verdict(
                f"{kind}: memory, MiB", max(column(kind, "loader", "max_rss_bytes", MIB)), 256, at_most=True, digits=0
            )
        )
        saved = ratio(column(kind, "rclone proven", "seconds"), column(kind, "loader", "seconds"))
        goals.append(verdict(f"{kind}: throughput over rclone, proven as ours is", saved, 1))
        cheaper = ratio(column(kind, "loader", "cpu_seconds"), column(kind, "rclone proven", "cpu_seconds"))
        goals.append(verdict(f"{kind}: CPU seconds over rclone, proven as ours is", cheaper, 1, at_most=True))
    head = ("what", "whole process, s", "CPU s", "peak anonymous memory, MiB", "largest RSS, MiB")
    return {"fetch main": make_table(head, rows), "fetch goals": make_table(GOALS_HEAD, goals)}
