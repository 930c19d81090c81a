"""`python -m tests.checkpoints real|split|synthetic|corrupt … DEST`: makes a checkpoint and prints its folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.checkpoints.corrupt import KINDS, make_corrupt
from tests.checkpoints.real import make_real
from tests.checkpoints.split import make_split
from tests.checkpoints.synthetic import make_synthetic


def main() -> None:
    """Parses and makes."""
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoints", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("real", help="all-MiniLM-L6-v2, 91 MB in one file")
    split = kinds.add_parser("split", help="a checkpoint of one file in shards with an index")
    split.add_argument("--source", type=Path, help="default: the real one")
    split.add_argument("--shards", type=int, default=12)
    split.add_argument("--style", choices=("padded", "plain"), default="padded")
    synthetic = kinds.add_parser("synthetic", help="bfloat16 of any size")
    synthetic.add_argument("--size-bytes", type=int, default=2**30)
    synthetic.add_argument("--shards", type=int, default=4)
    synthetic.add_argument("--style", choices=("padded", "plain"), default="padded")
    corrupt = kinds.add_parser("corrupt", help="a broken copy")
    corrupt.add_argument("--source", type=Path, required=True)
    corrupt.add_argument("--how", choices=sorted(KINDS), required=True)
    for command in kinds.choices.values():
        command.add_argument("destination", type=Path, metavar="DEST")
    print(_make(parser.parse_args()))


def _make(arguments: argparse.Namespace) -> Path:
    destination: Path = arguments.destination
    if arguments.kind == "real":
        return make_real(destination)
    if arguments.kind == "synthetic":
        return make_synthetic(destination, arguments.size_bytes, arguments.shards, style=arguments.style)
    if arguments.kind == "corrupt":
        return make_corrupt(arguments.how, arguments.source, destination)
    if arguments.source is not None:
        return make_split(arguments.source, destination, arguments.shards, arguments.style)
    source = make_real(destination.parent / f"{destination.name}-source")
    return make_split(source, destination, arguments.shards, arguments.style)


if __name__ == "__main__":
    main()
