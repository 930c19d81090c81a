"""Answers with vLLM's own parser, configuration and environment. Started by `parsers`, with vLLM's files on PYTHONPATH.

`accepted` means: `vllm serve`'s parser took the words and its LoadConfig took the values. The parser alone takes any load
format (plugins bring their own), so that one is looked up in vLLM's list as well.
"""

import ast
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.engines.answering import answer, describe_options

_OPTIONS = (
    "--load-format",
    "--safetensors-load-strategy",
    "--safetensors-prefetch-num-threads",
    "--safetensors-prefetch-block-size",
)
_VARIABLES = ("VLLM_FASTSAFETENSORS_QUEUE_SIZE",)


def main() -> None:
    """Reads the cases, writes the answers as the last line."""
    request = json.load(sys.stdin)
    parser = importlib.import_module("vllm.entrypoints.common.cli_args").make_arg_parser(
        importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    )
    answers = [_answer(parser, case) for case in request["cases"]]
    print(json.dumps({"answers": answers, "facts": _describe(parser)}))


def _answer(parser: Any, case: dict[str, Any]) -> dict[str, Any]:
    def read(argv: list[str]) -> dict[str, Any]:
        return _read_values(parser.parse_args(argv)) | _read_environment(case["environment"])

    return answer(case, read, "--model")


def _read_values(arguments: Any) -> dict[str, Any]:
    load_config = importlib.import_module("vllm.config.load").LoadConfig
    config = load_config(
        load_format=arguments.load_format,
        safetensors_load_strategy=arguments.safetensors_load_strategy,
        safetensors_prefetch_num_threads=arguments.safetensors_prefetch_num_threads,
        safetensors_prefetch_block_size=arguments.safetensors_prefetch_block_size,
    )
    if config.load_format not in _list_load_formats():
        message = f"{config.load_format} is none of vLLM's own load formats"
        raise ValueError(message)
    return {
        "loadFormat": config.load_format,
        "strategy": config.safetensors_load_strategy,
        "numThreads": config.safetensors_prefetch_num_threads,
        "blockSize": config.safetensors_prefetch_block_size,
    }


def _list_load_formats() -> list[str]:
    """From its source: importing its model loaders needs a GPU build of torch."""
    vllm = importlib.import_module("vllm")
    source = Path(vllm.__file__ or "").parent / "model_executor" / "model_loader" / "__init__.py"
    for statement in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "LoadFormats":
            return [node.value for node in ast.walk(statement.value) if isinstance(node, ast.Constant)]  # type: ignore[misc]
    message = "vLLM's list of load formats is not where it was"
    raise LookupError(message)


def _read_environment(environment: dict[str, str]) -> dict[str, Any]:
    variables = importlib.import_module("vllm.envs").environment_variables
    values = {}
    for name, text in environment.items():
        if name not in variables:
            message = f"vLLM knows no variable {name}"
            raise ValueError(message)
        os.environ[name] = text
        try:
            values[name] = variables[name]()
        finally:
            del os.environ[name]
    return values


def _describe(parser: Any) -> dict[str, Any]:
    variables = importlib.import_module("vllm.envs").environment_variables
    return {
        "version": importlib.import_module("importlib.metadata").version("vllm").partition("+")[0],
        "options": describe_options(parser, _OPTIONS),
        "loadFormats": sorted(_list_load_formats()),
        "variables": {name: variables[name]() for name in _VARIABLES},
    }


if __name__ == "__main__":
    main()
