"""Prints the engine settings that make a staging count.

Called by `commands`. Engines throw a warm page cache away by default (O_DIRECT), and read suffixes of sizes differently: so
the settings are spelled out, and every size is a plain integer. Must not import torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from modelweights_loader.quantity import MIB


class EngineSettings(NamedTuple):
    """Environment and flags by engine; proven tells whether a load with them succeeded on this machine."""

    proven: bool
    environment: dict[str, str]
    vllm_fastsafetensors: tuple[str, ...]
    vllm_safetensors: tuple[str, ...]
    sglang_fastsafetensors: tuple[str, ...]
    sglang_safetensors: tuple[str, ...]


def make_settings(prefetch: dict[str, Any], validated: dict[str, Any]) -> EngineSettings:
    """Makes the settings from the results of earlier steps.

    Args:
        prefetch: Result of `prefetch`, may be empty.
        validated: Result of `validate`, may be empty.

    Returns:
        The settings, sizes in bytes.
    """
    threads = int(prefetch.get("numThreads") or 8)
    block_bytes = int(prefetch.get("blockSize") or 16 * MIB)
    queue_size = int(validated.get("queueSize") or 0)
    proven = validated.get("exitCode") == 0 and validated.get("mode") == "Load"
    environment = {
        # Buffered reads: what was proven, and the only ones that see the page cache.
        "FASTSAFETENSORS_ODIRECT": "0",
        "VLLM_FASTSAFETENSORS_QUEUE_SIZE": str(queue_size),
        "SGLANG_PREFETCH_BLOCK_SIZE_MB": str(max(1, block_bytes // MIB)),
    }
    return EngineSettings(
        proven=proven,
        environment=environment,
        vllm_fastsafetensors=("--load-format", "fastsafetensors"),
        vllm_safetensors=(
            *("--safetensors-load-strategy", "prefetch"),
            *("--safetensors-prefetch-num-threads", str(threads)),
            *("--safetensors-prefetch-block-size", str(block_bytes)),
        ),
        sglang_fastsafetensors=(
            *("--load-format", "fastsafetensors"),
            *("--model-loader-extra-config", "'{\"enable_gds\":false}'"),
        ),
        sglang_safetensors=(
            "--weight-loader-prefetch-checkpoints",
            *("--weight-loader-prefetch-num-threads", str(threads)),
        ),
    )


def format_settings(settings: EngineSettings) -> str:
    """Prints settings as text that can be pasted into a shell.

    Args:
        settings: From `make_settings`.

    Returns:
        Several lines.
    """
    said = (
        "proven by a load on this machine"
        if settings.proven
        else "defaults, not proven: run validate with --results DIR, then flags with the same"
    )
    return "\n".join(
        (
            f"# {said}",
            *(f"export {name}={value}" for name, value in settings.environment.items()),
            "# vLLM with fastsafetensors",
            " ".join(settings.vllm_fastsafetensors),
            "# vLLM with plain safetensors",
            " ".join(settings.vllm_safetensors),
            "# SGLang with fastsafetensors",
            " ".join(settings.sglang_fastsafetensors),
            "# SGLang with plain safetensors",
            " ".join(settings.sglang_safetensors),
        )
    )
