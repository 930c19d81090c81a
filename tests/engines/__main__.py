"""The command line: `python -m tests.engines fetch|check`."""

import argparse
import json
import sys

from tests.engines.facts import FACTS_FILE, read_facts
from tests.engines.packages import FetchError, fetch
from tests.engines.parsers import ENGINES, EngineParserError, ask


def main() -> int:
    """Runs one command.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="fetch the engines' Python files and what their parsers import (some 450 MB)")
    check = commands.add_parser("check", help="compare the options of the engines' parsers with the committed facts")
    check.add_argument("--write", action="store_true", help="write the facts instead")
    arguments = parser.parse_args()
    try:
        folder = fetch()
        if arguments.command == "fetch":
            return 0
        found = {engine: ask(engine, folder, []).facts for engine in ENGINES}
    except (FetchError, EngineParserError) as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.write:
        FACTS_FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"wrote {FACTS_FILE}")
        return 0
    if found != read_facts():
        print(f"{FACTS_FILE} differs from the parsers; look at it, then: check --write", file=sys.stderr)
        return 1
    print("the engines' parsers have the options that the facts say")
    return 0


if __name__ == "__main__":
    sys.exit(main())
