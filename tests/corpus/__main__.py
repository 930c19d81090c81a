"""`python -m tests.corpus make DIR [NAME…]` makes cases to look at; `… table` writes docs/bad-input.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.corpus import CASES, make
from tests.corpus.table import write_table


def main() -> int:
    """Parses and does it."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="write cases below DIR, and print what is to be validated")
    making.add_argument("folder", type=Path, metavar="DIR")
    making.add_argument("names", nargs="*", metavar="NAME", help="default: all but those of 100 MB")
    asking = commands.add_parser(
        "table", help="ask the loader, safetensors and ParallelLoader, write docs/bad-input.md"
    )
    asking.add_argument("names", nargs="*", metavar="NAME", help="ask about these only; default: all")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - CASES.keys()
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if arguments.command == "table":
        wrong = write_table(arguments.names)
        print("\n".join(wrong), file=sys.stderr)
        return 1 if wrong else 0
    for case in CASES.values():
        if case.name in arguments.names or not (arguments.names or case.heavy):
            print(ascii(str(make(case, arguments.folder / case.name)))[1:-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
