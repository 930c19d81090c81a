"""What the engines' parsers say of the options that we print: names, kinds, choices, defaults. Facts, not code."""

import json
from pathlib import Path
from typing import Any, Final

FACTS_FILE: Final = Path(__file__).with_name("facts.json")


def read_facts() -> dict[str, Any]:
    """Reads the committed facts.

    Returns:
        By engine: version, options, variables.
    """
    facts: dict[str, Any] = json.loads(FACTS_FILE.read_text(encoding="utf-8"))
    return facts
