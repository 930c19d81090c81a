"""Makes the engine settings that let a staging count, from what earlier steps proved and measured.

Called by `commands.flags`. Engines throw a warm page cache away by default (O_DIRECT), and read suffixes of sizes
differently: so the settings are spelled out, and every size is a plain integer. docs/engines.md says how each is shown.
Must not import torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from modelweights_loader.load.contract import (
    FASTSAFETENSORS,
    LOAD_FORMATS,
    PARALLEL_LOADER_VERDICT,
    REFUSES,
    SAFETENSORS,
    SAFETENSORS_VERDICT,
)
from modelweights_loader.outcome import make_printable
from modelweights_loader.quantity import MIB

VLLM = "vllm"
SGLANG = "sglang"
ENGINES = (VLLM, SGLANG)
NAMES = {VLLM: "vLLM", SGLANG: "SGLang"}
# Whose argument parser takes these flags: a unit test asks exactly these versions.
PARSED_BY = {VLLM: "0.33.0", SGLANG: "0.5.23"}

PROVEN = "Proven"
NOT_SHOWN = "NotShown"
# An engine's signed 64 bits.
_LARGEST_NUMBER = 2**63 - 1
_PROOF_MODES = ("Load", "Full")


class Settings(NamedTuple):
    """How weights are loaded, in the words of the reports' `engine`; ranks is the size of the group."""

    load_format: str = FASTSAFETENSORS
    queue_size: int = 0
    odirect: bool = False
    nogds: bool = True
    ranks: int = 1
    tuned: bool = False

    def as_engine(self) -> dict[str, object]:
        """Makes the reports' `engine`.

        Returns:
            The object.
        """
        return {
            "loadFormat": self.load_format,
            "queueSize": self.queue_size,
            "odirect": self.odirect,
            "nogds": self.nogds,
            "ranks": self.ranks,
            "tuned": self.tuned,
        }


def read_engine(engine: dict[str, Any]) -> Settings:
    """Reads the reports' `engine`.

    Args:
        engine: The object; members that are missing, or are not what they should be, get their defaults.

    Returns:
        The settings.
    """
    return Settings(
        load_format=SAFETENSORS if engine.get("loadFormat") == SAFETENSORS else FASTSAFETENSORS,
        queue_size=_read_number(engine.get("queueSize"), -1, 0),
        odirect=bool(engine.get("odirect")),
        nogds=bool(engine.get("nogds", True)),
        ranks=_read_number(engine.get("ranks"), 1, 1),
        tuned=bool(engine.get("tuned")),
    )


def _read_number(value: object, least: int, default: int) -> int:
    """What comes out of a file and goes into a shell is a whole number within reason, or the default."""
    return value if type(value) is int and least <= value <= _LARGEST_NUMBER else default


class Invocation(NamedTuple):
    """One way to start one engine.

    Attributes:
        engine: `vllm` or `sglang`.
        load_format: What reads the weights there.
        flags: Words for its command line.
        environment: Variables that this way looks at.
        load: `Proven` when a load on this machine succeeded with this format and these settings, else `NotShown`.
        parser_version: Of the engine whose own parser takes these words.
        notes: Sentences.
    """

    engine: str
    load_format: str
    flags: tuple[str, ...]
    environment: dict[str, str]
    load: str
    parser_version: str
    notes: tuple[str, ...]


class EngineSettings(NamedTuple):
    """All ways to start engines, best first; proven tells whether the first one's load was shown on this machine."""

    proven: bool
    proof: str
    engine: Settings
    invocations: tuple[Invocation, ...]
    notes: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """Every variable; where two ways differ, the better one's."""
        merged: dict[str, str] = {}
        for invocation in reversed(self.invocations):
            merged |= invocation.environment
        return dict(sorted(merged.items()))

    def as_json(self) -> dict[str, object]:
        """Makes the object that `--json` prints.

        Returns:
            The object.
        """
        return {
            "proven": self.proven,
            "proof": self.proof,
            "engine": self.engine.as_engine(),
            "environment": self.environment,
            "invocations": [
                {
                    "engine": invocation.engine,
                    "loadFormat": invocation.load_format,
                    "flags": list(invocation.flags),
                    "environment": invocation.environment,
                    "load": invocation.load,
                    "parserVersion": invocation.parser_version,
                    "notes": list(invocation.notes),
                }
                for invocation in self.invocations
            ],
            "notes": list(self.notes),
        }


def make_settings(
    prefetch: dict[str, Any], validated: dict[str, Any], tuned: dict[str, Any], engines: tuple[str, ...] = ENGINES
) -> EngineSettings:
    """Makes the settings from the results of earlier steps.

    Args:
        prefetch: Result of `prefetch`, may be empty.
        validated: Result of `validate`, may be empty.
        tuned: Result of `tune`, may be empty.
        engines: For which engines.

    Returns:
        The settings, sizes in bytes.
    """
    shown, proof = _collect_proofs(validated, tuned)
    best = next(iter(shown.values()), None) or Settings()
    accepted, notes = _choose_formats(validated, best.load_format)
    first = best if best.load_format in accepted else shown.get(accepted[0], Settings(load_format=accepted[0]))
    invocations = [
        _make_invocation(engine, shown.get(load_format), load_format, prefetch)
        for load_format in accepted
        for engine in engines
    ]
    advice = tuned.get("advice")
    said = [str(line) for line in advice] if isinstance(advice, list) else []
    return EngineSettings(
        proven=first.load_format in shown,
        proof=proof if first.load_format in shown else _UNPROVEN,
        engine=first,
        invocations=tuple(invocations),
        notes=(*notes, *said),
    )


_UNPROVEN = "defaults, not proven: run validate with --results DIR, then flags with the same"


def _collect_proofs(validated: dict[str, Any], tuned: dict[str, Any]) -> tuple[dict[str, Settings], str]:
    """Settings under which a load succeeded here, by format, the ones to publish first; and words for it."""
    shown: dict[str, Settings] = {}
    proof = ""
    if tuned.get("exitCode") == 0 and isinstance(tuned.get("engine"), dict):
        proof = "measured and proven by loads on this machine"
        found = [read_engine(tuned["engine"])]
        others = tuned.get("byFormat")
        if isinstance(others, dict):
            found += [read_engine(engine) for engine in others.values() if isinstance(engine, dict)]
        for settings in found:
            shown.setdefault(settings.load_format, settings)
    if validated.get("exitCode") == 0 and validated.get("mode") in _PROOF_MODES:
        engine = validated.get("engine")
        # Results of older versions have the queue size alone.
        settings = read_engine(engine if isinstance(engine, dict) else {"queueSize": validated.get("queueSize")})
        shown.setdefault(settings.load_format, settings)
        proof = proof or "proven by a load on this machine"
    return shown, proof


def _choose_formats(validated: dict[str, Any], best: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The formats that can be published, best first, and why one is not."""
    formats = (best, *(load_format for load_format in LOAD_FORMATS if load_format != best))
    verdicts = validated.get("verdicts")
    if not isinstance(verdicts, dict):
        return formats, ()
    refusals = validated.get("refusals")
    refusals = refusals if isinstance(refusals, dict) else {}
    keys = {FASTSAFETENSORS: PARALLEL_LOADER_VERDICT, SAFETENSORS: SAFETENSORS_VERDICT}
    refused = [load_format for load_format in formats if verdicts.get(keys[load_format]) == REFUSES]
    if len(refused) == len(formats):
        return formats, ("neither ParallelLoader nor safetensors loads this checkpoint: see validate",)
    notes = []
    for load_format in refused:
        name = "ParallelLoader" if load_format == FASTSAFETENSORS else "safetensors"
        other = SAFETENSORS if load_format == FASTSAFETENSORS else FASTSAFETENSORS
        said = str(refusals.get(keys[load_format]) or "see validate")
        notes.append(f"{name} refuses this checkpoint ({said}): only the settings for {other} are printed")
    return tuple(load_format for load_format in formats if load_format not in refused), tuple(notes)


def _make_invocation(engine: str, shown: Settings | None, load_format: str, prefetch: dict[str, Any]) -> Invocation:
    settings = shown or Settings(load_format=load_format)
    if load_format == FASTSAFETENSORS:
        flags, environment, notes = _use_fastsafetensors(engine, settings)
    else:
        threads = _read_number(prefetch.get("numThreads"), 1, 8)
        block_bytes = _read_number(prefetch.get("blockSize"), 1, 16 * MIB)
        flags, environment, notes = _use_safetensors(engine, threads, block_bytes, shown=shown is not None)
    load = PROVEN if shown is not None else NOT_SHOWN
    return Invocation(engine, load_format, flags, environment, load, PARSED_BY[engine], notes)


_Parts = tuple[tuple[str, ...], dict[str, str], tuple[str, ...]]


def _use_fastsafetensors(engine: str, settings: Settings) -> _Parts:
    # The library takes "1" as direct and all else as buffered; unset, it chooses by the file system, not by the node.
    environment = {"FASTSAFETENSORS_ODIRECT": "1" if settings.odirect else "0"}
    flags: tuple[str, ...] = ("--load-format", FASTSAFETENSORS)
    if engine == VLLM:
        environment["VLLM_FASTSAFETENSORS_QUEUE_SIZE"] = str(settings.queue_size)
        if settings.ranks > 1:
            flags += ("--tensor-parallel-size", str(settings.ranks))
        return flags, environment, ()
    flags += ("--model-loader-extra-config", '{"enable_gds":false}')
    note = "SGLang loads one shard at a time and has no queue: it was the library that was proven, not this order"
    return flags, environment, (note,)


def _use_safetensors(engine: str, threads: int, block_bytes: int, *, shown: bool) -> _Parts:
    """Where a load was shown, it was one of resident files by their mapping: that is published, not a second reading."""
    prefetching: tuple[str, ...]
    if engine == VLLM:
        prefetching = (
            *("--safetensors-load-strategy", "prefetch"),
            *("--safetensors-prefetch-num-threads", str(threads)),
            *("--safetensors-prefetch-block-size", str(block_bytes)),
        )
        plain: tuple[str, ...] = ("--load-format", SAFETENSORS, "--safetensors-load-strategy", "lazy")
        if shown:
            return plain, {}, (f"where pages may be gone by then, instead: {' '.join(prefetching)}",)
        return prefetching, {}, (f"where everything is resident, instead of reading it twice: {' '.join(plain)}",)
    prefetching = ("--weight-loader-prefetch-checkpoints", "--weight-loader-prefetch-num-threads", str(threads))
    plain = ("--load-format", SAFETENSORS)
    environment = {"SGLANG_PREFETCH_BLOCK_SIZE_MB": str(max(1, block_bytes // MIB))}
    never = "never --weight-loader-drop-cache-after-load: it would throw away what was staged"
    serial = "(with prefetch, SGLang loads in one thread only)"
    if shown:
        return plain, environment, (f"where pages may be gone by then, add: {' '.join(prefetching)} {serial}", never)
    return prefetching, environment, (f"where everything is resident, instead: {' '.join(plain)} {serial}", never)


def format_settings(settings: EngineSettings) -> str:
    """Prints settings as text that can be pasted into a shell.

    Args:
        settings: From `make_settings`.

    Returns:
        Several lines.
    """
    lines = [f"# {settings.proof}"]
    # Words of a library about a checkpoint: without line ends, or they would be commands.
    lines += [f"# {make_printable(note)}" for note in settings.notes]
    lines += [f"export {name}={value}" for name, value in settings.environment.items()]
    for invocation in settings.invocations:
        with_what = "fastsafetensors" if invocation.load_format == FASTSAFETENSORS else "plain safetensors"
        engine = NAMES[invocation.engine]
        load = "proven here" if invocation.load == PROVEN else "not shown here"
        lines.append(
            f"# {engine} with {with_what}: the load {load}, "
            f"the flags accepted by {engine} {invocation.parser_version}'s parser"
        )
        lines += [f"# {note}" for note in invocation.notes]
        lines.append(" ".join(_quote(word) for word in invocation.flags))
    return "\n".join(lines)


def _quote(word: str) -> str:
    return f"'{word}'" if '"' in word else word
