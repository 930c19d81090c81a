"""What both engines' programs do alike: give a case to a parser, and describe its options. Runs beside an engine's files."""

import argparse
import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def answer(case: dict[str, Any], read: Callable[[list[str]], dict[str, Any]], model_option: str) -> dict[str, Any]:
    """Say whether an engine takes a case, with which values, or what it says against it.

    Args:
        case: argv, environment, and config: the content of a configuration file, or None.
        read: Parses words and returns values; exits, or raises ValueError, for what it doesn't take.
        model_option: What the engine calls the path of its model.
    """
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        argv = [model_option, "/models/none", *case["argv"]]
        if case["config"] is not None:
            path = Path(folder) / "config.yaml"
            path.write_text(case["config"], encoding="utf-8")
            argv += ["--config", str(path)]
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                values = read(argv)
        except SystemExit:
            return {"accepted": False, "values": {}, "said": said.getvalue().strip().splitlines()[-1]}
        except ValueError as error:
            return {"accepted": False, "values": {}, "said": str(error)}
    return {"accepted": True, "values": values, "said": ""}


def describe_options(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> dict[str, Any]:
    """Default, choices and type of some of a parser's options."""
    options = {}
    for action in parser._actions:
        for name in set(action.option_strings) & set(names):
            options[name] = {
                "default": action.default,
                "choices": None if action.choices is None else sorted(map(str, action.choices)),
                "kind": getattr(action.type, "__name__", str(action.type)),
            }
    return options
