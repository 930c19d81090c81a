"""Fetches from a source that logs each byte it serves, until it is killed: `python slow_fetch.py HOME LOG SIZES… `."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from modelweights_loader.fetch.fetching import FetchOptions, fetch
from modelweights_loader.fetch.workers import DownloadOptions
from modelweights_loader.memory import Reserve
from tests.unit.loader.fetch.scripted_source import ScriptedSource, make_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelweights_loader.sources.contract import RemoteFile

NUM_CONNECTIONS = 4
PART_BYTES = 2**20
BYTES_PER_SECOND = 30.0 * 2**20


def main(home: str, log: str, *sizes: str) -> None:
    served = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def fault(_file: RemoteFile, _begin: int, _end: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            os.write(served, b"%d\n" % len(piece))
            yield piece

    source = ScriptedSource(make_checkpoint(tuple(map(int, sizes))), fault=fault)
    download = DownloadOptions(NUM_CONNECTIONS, PART_BYTES, BYTES_PER_SECOND)
    result = fetch(home, source, FetchOptions("hf://org/tiny", download=download, reserve=Reserve(percent=0)))
    assert result.published is not None
    print(result.published.folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
