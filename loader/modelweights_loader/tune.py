"""Times the ways in which engines can load a checkpoint on this node, with the page cache as staging leaves it.

Called by `commands.tune`; `tune_choice` decides. Nothing is evicted: what was just staged must stay, and reading past the
page cache costs the same whether it is warm or not. So both ways are timed with a warm cache. Must not import torch.

    sample -> resident -> rounds over all candidates, each load in a new process -> choice -> as resident as before
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.errors import InterruptedByUserError, LoaderError, TerminatedError
from modelweights_loader.file_systems import detect
from modelweights_loader.load.contract import FASTSAFETENSORS, LOAD_FORMATS, LoadRequest
from modelweights_loader.load_process import LoadProcess
from modelweights_loader.memory import measure_room
from modelweights_loader.prefetch import prefetch
from modelweights_loader.quantity import GIB, KIB, MIB, format_bytes
from modelweights_loader.residency import Residency, measure
from modelweights_loader.structure import Structure, read_structure
from modelweights_loader.tune_choice import (
    DEFAULT_QUEUE_SIZES,
    MIN_ROUNDS,
    Candidate,
    Choice,
    Timing,
    advise,
    choose,
    estimate_repetitions,
    fit_in_time,
    list_candidates,
    list_finalists,
    refuse_for_memory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelweights_loader.checkpoint import Checkpoint, CheckpointFile
    from modelweights_loader.load.contract import LoadResult

# The library's default, its counterpart, and safetensors.
_FIRST_IN_ANY_CASE = 3
_NO_TIME = "no time was left for it"
# What the library has when nobody tells it, and engines tell it nothing.
_ENGINE_BOUNCE_BUFFER_KIB = 16 * KIB
_ENGINE_THREADS = 16
# A load process with torch in it. There is one at a time.
_PROCESS_BYTES = 256 * MIB
_MISSED_PERCENT = 0.5
# Where fastsafetensors reads through the page cache when nobody tells it; everywhere else it opens with O_DIRECT.
READ_BUFFERED = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "sshfs", "fuse.sshfs", "lustre", "gpfs", "beegfs", "glusterfs"),
        *("ceph", "9p", "virtiofs", "tmpfs", "ramfs"),
    )
)


class TuneOptions(NamedTuple):
    """How to tune: the time and rounds for all of it, and the bytes to load each time (whole shards, at least one)."""

    max_seconds: float = 120.0
    sample_bytes: int = 4 * GIB
    queue_sizes: tuple[int, ...] = DEFAULT_QUEUE_SIZES
    load_formats: tuple[str, ...] = LOAD_FORMATS
    device: str = "cpu"
    gds: str = "Auto"
    max_rounds: int = 5


class TuneResult(NamedTuple):
    """What was measured and chosen; before and after are the residency of all shards, after making the sample resident."""

    choice: Choice
    timings: tuple[Timing, ...]
    advice: tuple[str, ...]
    sample: tuple[CheckpointFile, ...]
    before: Residency
    after: Residency
    versions: dict[str, str]

    def figures(self) -> dict[str, object]:
        """The figures as the report carries them, by importance."""
        best = self.choice.best
        percents = [resident.percent for resident in (self.before, self.after)]
        before, after = (None if percent is None else round(percent, 2) for percent in percents)
        return {
            "engine": None if best is None else best.as_settings().as_engine(),
            "loadSeconds": None if best is None else round(best.median_seconds, 3),
            "loadBytesPerSecond": None if best is None else round(best.bytes_per_second),
            "residentPercentBefore": before,
            "residentPercent": after,
            "sampleBytes": sum(file.size_bytes for file in self.sample),
            "sampleShards": len(self.sample),
            "byFormat": {name: timing.as_settings().as_engine() for name, timing in self.choice.by_format.items()},
            **self.versions,
            "advice": list(self.advice),
            "candidates": [timing.as_json() for timing in self.timings],
        }


def tune(
    checkpoint: Checkpoint, options: TuneOptions, on_progress: Callable[[str], None] = lambda _line: None
) -> TuneResult:
    """Times all candidates and chooses. Blocks until done.

    Args:
        checkpoint: From `find_checkpoint`.
        options: How.
        on_progress: Gets a line after each load.

    Returns:
        What was measured.

    Raises:
        LoaderError: The checkpoint is bad. A candidate that fails is a row of the table and no error.
    """
    deadline = time.monotonic() + options.max_seconds
    structure = read_structure(checkpoint)
    sample = choose_sample(checkpoint, structure, options.sample_bytes)
    before = _make_resident(checkpoint, sample)
    default_is_direct = detect(sample[0].real_path).type not in READ_BUFFERED
    default = Candidate(FASTSAFETENSORS, 0, default_is_direct)
    candidates = list_candidates(options.load_formats, options.queue_sizes, default_is_direct=default_is_direct)
    room = _measure_room(before) - _PROCESS_BYTES
    largest = max(file.size_bytes for file in sample)
    refusals = {candidate: refuse_for_memory(candidate, largest, room) for candidate in candidates}
    race = _Race(sample, structure, options, deadline)
    timings = race.run(refusals, default, on_progress)
    choice = choose(timings, default)
    after = measure(checkpoint.shards)
    if _has_lost(before, after):
        _make_resident(checkpoint, sample)
        after = measure(checkpoint.shards)
    advice = [*advise(timings, choice, default), *_describe_pages(before, after)]
    if options.device == "cpu":
        advice.append(
            "timed into this machine's memory: an engine's copy to its GPU comes on top (--device cuda times it)"
        )
    return TuneResult(choice, tuple(timings), tuple(advice), sample, before, after, race.versions)


def choose_sample(checkpoint: Checkpoint, structure: Structure, sample_bytes: int) -> tuple[CheckpointFile, ...]:
    """Chooses whole shards in load order.

    Args:
        checkpoint: Its shards.
        structure: Their headers: a shard without tensors has nothing to load.
        sample_bytes: Stop before more than this, but take one at least.

    Returns:
        The shards.
    """
    sample: list[CheckpointFile] = []
    taken = 0
    for shard in checkpoint.shards:
        if not structure.headers[shard.path].tensors:
            continue
        if sample and taken + shard.size_bytes > sample_bytes:
            break
        sample.append(shard)
        taken += shard.size_bytes
    return tuple(sample)


def _make_resident(checkpoint: Checkpoint, sample: tuple[CheckpointFile, ...]) -> Residency:
    """Reads what is missing of the sample; the rest of the checkpoint is left as it is."""
    residency = measure(checkpoint.shards)
    names = {file.path for file in sample}
    for found in residency.files:
        if found.path in names and (found.resident_bytes is None or found.resident_bytes < found.size_bytes):
            prefetch(sample)
            return measure(checkpoint.shards)
    return residency


def _measure_room(resident: Residency) -> int:
    """Memory that a load may take: what is available, less the staged pages, which count as available."""
    staged = resident.size_bytes if resident.resident_bytes is None else resident.resident_bytes
    return measure_room(staged).room_bytes - staged


def _has_lost(before: Residency, after: Residency) -> bool:
    return before.percent is not None and after.percent is not None and after.percent < before.percent - _MISSED_PERCENT


def _describe_pages(before: Residency, after: Residency) -> list[str]:
    if not _has_lost(before, after):
        return []
    shares = f"{before.percent:.1f} % were resident before, {after.percent:.1f} % are now"
    return [f"the loads pushed staged pages out: {shares}; give the pod more memory, or lower --sample-bytes"]


class _Race:
    """Rounds over all candidates. They take turns, so that whatever else the node does hits all of them alike.

    Each load has a process of its own, as in an engine, which loads once: in a second load the allocator gives back memory
    that the first one has touched, which flatters safetensors where tensors are below 32 MiB (a seventh of the page faults,
    a third less of the processor). The next process is started when the one before has ended, since its imports would take
    the processor away from the load that is timed.
    """

    def __init__(
        self, sample: Sequence[CheckpointFile], structure: Structure, options: TuneOptions, deadline: float
    ) -> None:
        headers = [structure.headers[file.path] for file in sample]
        tensors = [tensor for header in headers for tensor in header.tensors.values()]
        self._files = [file.real_path for file in sample]
        self._dtypes = sorted({tensor.dtype for tensor in tensors})
        self._wanted = (len(tensors), sum(tensor.end - tensor.begin for tensor in tensors))
        self._options = options
        self._deadline = deadline
        self._whole_seconds: dict[Candidate, float] = {}
        self.versions: dict[str, str] = {}

    def run(
        self, refusals: dict[Candidate, str], default: Candidate, on_progress: Callable[[str], None]
    ) -> list[Timing]:
        """Runs rounds until the time is up; refusals are by candidate, empty for those that may run."""
        timings = {candidate: Timing(candidate, refusal=refusal) for candidate, refusal in refusals.items()}
        for place, (candidate, timing) in enumerate(timings.items()):
            if timing.refusal:
                continue
            if place >= _FIRST_IN_ANY_CASE and not self._has_time_for_one_more(timings, default):
                timings[candidate] = timing._replace(refusal=_NO_TIME)
                continue
            timings[candidate] = self._time(timing)
            on_progress(_describe(timings[candidate]))
        finalists = list_finalists(list(timings.values()), default)
        for turn in range(self._options.max_rounds - 1):
            left = self._deadline - time.monotonic()
            finalists = [candidate for candidate in finalists if not timings[candidate].refusal]
            missing = MIN_ROUNDS - 1 - turn
            if missing > 0:
                finalists = fit_in_time(finalists, self._whole_seconds, left, missing)
            # Whole turns only, or the fastest would have enough rounds before there is anything to compare them with.
            if estimate_repetitions(finalists, self._whole_seconds, 1) > left:
                break
            # To and fro, so that nobody always comes after the same one.
            for candidate in finalists if turn % 2 else reversed(finalists):
                timings[candidate] = self._time(timings[candidate])
                on_progress(_describe(timings[candidate]))
        return list(timings.values())

    def _has_time_for_one_more(self, timings: dict[Candidate, Timing], default: Candidate) -> bool:
        """Whether another candidate leaves the time to repeat those that are the best so far."""
        finalists = list_finalists(list(timings.values()), default)
        needed = max(self._whole_seconds.values(), default=0.0) + estimate_repetitions(finalists, self._whole_seconds)
        return time.monotonic() + needed < self._deadline

    def _time(self, timing: Timing) -> Timing:
        started = time.monotonic()
        left = self._deadline - started
        if left <= 0:
            return timing._replace(refusal=_NO_TIME)
        try:
            result = self._load(timing.candidate, left)
        except (InterruptedByUserError, TerminatedError):
            raise
        except LoaderError as error:
            if error.reason == "LoaderMissing" and timing.candidate.load_format == FASTSAFETENSORS:
                # No way will do without torch; safetensors alone may be missing.
                raise
            slow = error.reason == "LoadTimeout"
            refusal = f"not done within the {left:.0f} s that were left" if slow else f"{error.reason}: {error.message}"
            return timing._replace(refusal=refusal)
        whole = time.monotonic() - started
        self._whole_seconds[timing.candidate] = max(whole, self._whole_seconds.get(timing.candidate, 0.0))
        return self._add(timing, result)

    def _load(self, candidate: Candidate, seconds: float) -> LoadResult:
        request = LoadRequest(
            files=self._files,
            dtypes=self._dtypes,
            load_format=candidate.load_format,
            queue_size=candidate.queue_size,
            odirect=candidate.odirect,
            bounce_buffer_kib=_ENGINE_BOUNCE_BUFFER_KIB,
            max_threads=_ENGINE_THREADS,
            max_batch_bytes=0,
            device=self._options.device,
            gds=self._options.gds,
            list_tensors=False,
            # Each way fills new memory once. In an engine ParallelLoader's second copy happens within the GPU's memory.
            borrow=self._options.device == "cpu" and candidate.load_format == FASTSAFETENSORS,
        )
        with LoadProcess() as process:
            result = process.load(request, seconds)
            self.versions = process.versions
        return result

    def _add(self, timing: Timing, result: LoadResult) -> Timing:
        got = (result.tensor_count, result.loaded_bytes)
        if got != self._wanted:
            said = f"gave {got[0]} tensors of {got[1]} bytes, the headers have {self._wanted[0]} of {self._wanted[1]}"
            return timing._replace(refusal=said)
        if timing.candidate.odirect and not result.odirect:
            return timing._replace(refusal="this version of fastsafetensors reads through the page cache")
        storage = [bytes_ for bytes_ in (timing.storage_bytes, result.read_bytes) if bytes_ is not None]
        return timing._replace(
            seconds=(*timing.seconds, result.load_seconds),
            size_bytes=result.loaded_bytes,
            storage_bytes=max(storage, default=None),
            peak_bytes=max(timing.peak_bytes, result.peak_bytes - result.base_bytes),
            nogds=result.nogds,
        )


def _describe(timing: Timing) -> str:
    if timing.refusal:
        return f"{timing.candidate}: {timing.refusal}"
    rate = f"{format_bytes(timing.size_bytes / max(timing.seconds[-1], 1e-9))}/s"
    return f"{timing.candidate}: {timing.seconds[-1]:.3f} s, {rate} (round {len(timing.seconds)})"
