"""Answers with SGLang's own parser, configuration and environment. Started by `parsers`, with SGLang's files on PYTHONPATH.

`accepted` means: the server's parser took the words, and its LoadConfig took the load format and its extra settings.
"""

import argparse
import importlib
import json
import os
import sys
import types
import warnings
from pathlib import Path
from typing import Any

from tests.engines.answering import answer, describe_options

_OPTIONS = (
    "--load-format",
    "--model-loader-extra-config",
    "--weight-loader-prefetch-checkpoints",
    "--weight-loader-prefetch-num-threads",
)
_VARIABLES = ("SGLANG_PREFETCH_BLOCK_SIZE_MB",)


def main() -> None:
    """Reads the cases, writes the answers as the last line."""
    request = json.load(sys.stdin)
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    answers = [_answer(parser, case) for case in request["cases"]]
    print(json.dumps({"answers": answers, "facts": _describe(parser)}))


def _answer(parser: argparse.ArgumentParser, case: dict[str, Any]) -> dict[str, Any]:
    merger = importlib.import_module("sglang.srt.utils.server_args_config_parser").ConfigArgumentMerger

    def read(argv: list[str]) -> dict[str, Any]:
        if case["config"] is not None:
            argv = merger(parser).merge_config_with_args(argv)
        return _read_values(parser.parse_args(argv)) | _read_environment(case["environment"])

    return answer(case, read, "--model-path")


def _read_values(arguments: argparse.Namespace) -> dict[str, Any]:
    config = _load_config_module().LoadConfig(
        load_format=arguments.load_format, model_loader_extra_config=arguments.model_loader_extra_config
    )
    return {
        "loadFormat": str(config.load_format.value),
        "extraConfig": config.model_loader_extra_config,
        "prefetch": arguments.weight_loader_prefetch_checkpoints,
        "numThreads": arguments.weight_loader_prefetch_num_threads,
    }


def _load_config_module() -> Any:
    """The module without what its package imports beside it: every model's configuration, and torchvision with them."""
    package = "sglang.srt.configs"
    if package not in sys.modules:
        bare = types.ModuleType(package)
        bare.__path__ = [str(Path(importlib.import_module("sglang").__file__ or "").parent / "srt" / "configs")]
        sys.modules[package] = bare
    return importlib.import_module(f"{package}.load_config")


def _read_environment(environment: dict[str, str]) -> dict[str, Any]:
    known = importlib.import_module("sglang.srt.environ").envs
    values = {}
    for name, text in environment.items():
        if not hasattr(known, name):
            message = f"SGLang knows no variable {name}"
            raise ValueError(message)
        os.environ[name] = text
        try:
            with warnings.catch_warnings():
                # It warns of what it can't read, and takes the default: for us that is a refusal.
                warnings.simplefilter("error")
                values[name] = getattr(known, name).get()
        except Warning as warning:
            raise ValueError(str(warning)) from warning
        finally:
            del os.environ[name]
    return values


def _describe(parser: argparse.ArgumentParser) -> dict[str, Any]:
    known = importlib.import_module("sglang.srt.environ").envs
    return {
        "version": importlib.import_module("importlib.metadata").version("sglang"),
        "options": describe_options(parser, _OPTIONS),
        "variables": {name: getattr(known, name).get() for name in _VARIABLES},
    }


if __name__ == "__main__":
    main()
