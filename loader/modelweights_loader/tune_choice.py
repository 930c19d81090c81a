"""Which ways to load are timed by `tune`, which of them is published, and what is said about it. Pure decisions.

Called by `tune`. Only settings that an engine can be given are candidates: vLLM gives ParallelLoader nothing but a queue
size and, by the library's own variable, O_DIRECT; SGLang only the latter. So bounce buffers, reader threads and batches
stay as the library has them. Must not import torch.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

from modelweights_loader.flags import Settings
from modelweights_loader.load.contract import FASTSAFETENSORS, LOAD_FORMATS, SAFETENSORS
from modelweights_loader.quantity import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Medians of two ways that cost the same differed by up to 7.4 % in ten runs on an idle node (docs/tuning.md).
MARGIN = 0.08
# A median of fewer says nothing about the next one.
MIN_ROUNDS = 3
# After the first round only this many of each format go on, and none that is this many times slower than the best of it.
FINALISTS = 3
HOPELESS = 2.0
_CLEAR = 4.0
# One alone is no comparison.
_COMPARED = 2
DEFAULT_QUEUE_SIZES = (-1, 0, 1, 2)


class Candidate(NamedTuple):
    """One way to load."""

    load_format: str
    queue_size: int = 0
    odirect: bool = False

    def __str__(self) -> str:
        """For tables and messages."""
        if self.load_format == SAFETENSORS:
            return "safetensors"
        way = "past the page cache" if self.odirect else "through the page cache"
        return f"fastsafetensors {way}, queue size {self.queue_size}"

    @property
    def batches(self) -> int:
        """Shards that are in memory at the same time; 0 for safetensors, which maps them."""
        if self.load_format == SAFETENSORS:
            return 0
        return 1 if self.queue_size < 0 else self.queue_size + 2


class Timing(NamedTuple):
    """What was measured of one candidate.

    Attributes:
        candidate: Which.
        seconds: Of each good load.
        size_bytes: Of the tensors that each load gave.
        storage_bytes: The most that one load fetched from storage; None where nobody says.
        peak_bytes: The most memory that a load took, imports not included.
        nogds: What the library was told.
        refusal: Why it was not timed, or not to the end; empty otherwise.
    """

    candidate: Candidate
    seconds: tuple[float, ...] = ()
    size_bytes: int = 0
    storage_bytes: int | None = None
    peak_bytes: int = 0
    nogds: bool = True
    refusal: str = ""

    @property
    def median_seconds(self) -> float:
        """Of all rounds; infinite without any."""
        return statistics.median(self.seconds) if self.seconds else float("inf")

    @property
    def bytes_per_second(self) -> float:
        """At the median."""
        return self.size_bytes / self.median_seconds if self.seconds and self.median_seconds > 0 else 0.0

    @property
    def is_complete(self) -> bool:
        """Whether there were enough rounds, and each was good."""
        return len(self.seconds) >= MIN_ROUNDS and not self.refusal

    @property
    def reads_storage(self) -> bool:
        """Whether it read most of its bytes from storage, warm cache or not."""
        return self.storage_bytes is not None and self.storage_bytes > self.size_bytes / 2

    def as_settings(self) -> Settings:
        """Makes the settings that an engine is given."""
        candidate = self.candidate
        return Settings(candidate.load_format, candidate.queue_size, candidate.odirect, self.nogds, 1, tuned=True)

    def as_json(self) -> dict[str, object]:
        """Makes the row of the report's table."""
        return {
            "loadFormat": self.candidate.load_format,
            "queueSize": self.candidate.queue_size,
            "odirect": self.candidate.odirect,
            "medianSeconds": round(self.median_seconds, 3) if self.seconds else None,
            "seconds": [round(seconds, 3) for seconds in self.seconds],
            "bytesPerSecond": round(self.bytes_per_second),
            "readBytes": self.storage_bytes,
            "peakBytes": self.peak_bytes,
            "refusal": self.refusal or None,
        }


def list_candidates(
    load_formats: tuple[str, ...], queue_sizes: tuple[int, ...], *, default_is_direct: bool
) -> list[Candidate]:
    """Lists what could be timed, in the order in which it is worth the time.

    The engine's own default comes first: nothing is published that loses to it.

    Args:
        load_formats: Which formats.
        queue_sizes: Which queue sizes.
        default_is_direct: Whether fastsafetensors passes by the page cache here when nobody tells it.

    Returns:
        The candidates.
    """
    listed: list[Candidate] = []
    if FASTSAFETENSORS in load_formats:
        sizes = sorted(set(queue_sizes), key=lambda size: (abs(size), size))
        for size in sizes:
            ways = (default_is_direct, not default_is_direct)
            listed += [Candidate(FASTSAFETENSORS, size, odirect) for odirect in ways]
    if SAFETENSORS in load_formats:
        listed.insert(min(2, len(listed)), Candidate(SAFETENSORS))
    return listed


def refuse_for_memory(candidate: Candidate, largest_bytes: int, room_bytes: int) -> str:
    """Says whether a candidate would need more memory than there is beside what was staged.

    Args:
        candidate: Which.
        largest_bytes: Of the largest shard.
        room_bytes: What a load may take without pushing staged pages out.

    Returns:
        Why it is not to be run, or an empty string.
    """
    # The library copies each tensor out of its shard's buffer: one more at the most.
    needed = candidate.batches * largest_bytes
    if needed <= room_bytes:
        return ""
    return f"needs some {format_bytes(needed)} of memory beside the staged pages, there are {format_bytes(room_bytes)}"


def list_finalists(timings: list[Timing], default: Candidate) -> list[Candidate]:
    """Lists who is worth further rounds after the first one, fastest first.

    Args:
        timings: Everybody's first round.
        default: What the library does when nobody tells it. It is repeated in any case but a clear one: one round that
            something disturbed must not take away the bound that it sets.

    Returns:
        The best few of each format; what is far slower than the best of its format is not among them.
    """
    finalists: list[Timing] = []
    for load_format in LOAD_FORMATS:
        found = [timing for timing in timings if timing.candidate.load_format == load_format and timing.seconds]
        found = sorted((timing for timing in found if not timing.refusal), key=lambda timing: timing.median_seconds)
        for place, timing in enumerate(found):
            is_default = timing.candidate == default
            bound = (_CLEAR if is_default else HOPELESS) * found[0].median_seconds
            if timing.median_seconds <= bound and (is_default or place < FINALISTS):
                finalists.append(timing)
    return [timing.candidate for timing in sorted(finalists, key=lambda timing: timing.median_seconds)]


def estimate_repetitions(
    finalists: Sequence[Candidate], whole_seconds: Mapping[Candidate, float], turns: int = MIN_ROUNDS - 1
) -> float:
    """Estimates how long further rounds take.

    Args:
        finalists: From `list_finalists`.
        whole_seconds: What a load of each takes, with the start of its process.
        turns: How many; by default what makes the first round enough to be published.

    Returns:
        Seconds.
    """
    return turns * sum(whole_seconds[candidate] for candidate in finalists)


def fit_in_time(
    finalists: Sequence[Candidate],
    whole_seconds: Mapping[Candidate, float],
    seconds_left: float,
    turns: int = MIN_ROUNDS - 1,
) -> list[Candidate]:
    """Leaves away the slowest, until the others can have enough rounds: a few that are known beat many that are not.

    Two stay in any case: one that is repeated alone is compared with nothing, and on a busy node that was the winner of one
    round, a different one each time. When there is no time for both, nothing is published.

    Args:
        finalists: Fastest first.
        whole_seconds: See `estimate_repetitions`.
        seconds_left: For all repetitions.
        turns: See `estimate_repetitions`.

    Returns:
        The fastest.
    """
    kept = list(finalists)
    while len(kept) > _COMPARED and estimate_repetitions(kept, whole_seconds, turns) > seconds_left:
        kept.pop()
    return kept


class Choice(NamedTuple):
    """What is published: the best of all, and the best of each format. None when nothing was timed often enough."""

    best: Timing | None
    by_format: dict[str, Timing]


def choose(timings: list[Timing], default: Candidate) -> Choice:
    """Chooses what is published.

    The fastest by median wins. What is slower by less than `MARGIN` counts as equal; among equals the page cache goes
    before storage (it scales with the pods of a node, the disk doesn't), then fastsafetensors before safetensors, then
    less memory. Whatever is slower than the library's own default is out, by however little.

    Args:
        timings: All candidates.
        default: What the library does when nobody tells it.

    Returns:
        The choice.
    """
    by_format = {}
    for load_format in LOAD_FORMATS:
        found = _choose([timing for timing in timings if timing.candidate.load_format == load_format], default)
        if found is not None:
            by_format[load_format] = found
    return Choice(_choose(timings, default), by_format)


def _choose(timings: list[Timing], default: Candidate) -> Timing | None:
    complete = [timing for timing in timings if timing.is_complete]
    if not complete:
        return None
    fastest = min(timing.median_seconds for timing in complete)
    bound = fastest * (1 + MARGIN)
    bound = min([bound, *(timing.median_seconds for timing in timings if timing.candidate == default)])
    equal = [timing for timing in complete if timing.median_seconds <= bound]
    if not equal:
        # The default had too few rounds, yet all of them faster than anything else.
        return None
    return min(equal, key=_rank)


def _rank(timing: Timing) -> tuple[bool, bool, int, float]:
    candidate = timing.candidate
    return candidate.odirect, candidate.load_format == SAFETENSORS, candidate.batches, timing.median_seconds


def advise(timings: list[Timing], choice: Choice, default: Candidate) -> list[str]:
    """Says in words what the figures mean for staging.

    Args:
        timings: All candidates.
        choice: What is published.
        default: What the library does when nobody tells it.

    Returns:
        Sentences.
    """
    if choice.best is None:
        return [
            "nothing was timed often enough to be published: give more time with --max-seconds, or a smaller sample"
        ]
    lines = []
    by_default = next((timing for timing in timings if timing.candidate == default and timing.seconds), None)
    if by_default is not None and default.odirect and by_default.reads_storage:
        lines.append(
            "fastsafetensors reads past the page cache unless it is told not to: with its default, staging into memory "
            f"gains it nothing ({_say(by_default)}, all from storage)"
        )
    cached = _find_fastest(timings, FASTSAFETENSORS, odirect=False)
    direct = _find_fastest(timings, FASTSAFETENSORS, odirect=True)
    if cached is not None and direct is not None and direct.reads_storage:
        lines.append(_compare(cached, direct))
    plain = _find_fastest(timings, SAFETENSORS, odirect=False)
    if plain is not None and choice.best.candidate.load_format == FASTSAFETENSORS:
        lines.append(f"safetensors from the warm page cache: {_say(plain)}")
    lines.append(f"published: {choice.best.candidate}, {_say(choice.best)}")
    if choice.best.candidate.odirect and choice.best.reads_storage:
        lines.append(
            "so for fastsafetensors staging into memory gains nothing on this node; the files on disk and the proof that "
            "they load still do"
        )
    return lines


def _compare(cached: Timing, direct: Timing) -> str:
    factor = direct.median_seconds / cached.median_seconds
    if abs(factor - 1) <= MARGIN:
        verdict = "equal within what rounds differ"
    else:
        verdict = f"the warm cache wins {factor:.1f}x" if factor > 1 else f"storage wins {1 / factor:.1f}x"
    return (
        f"fastsafetensors from the warm page cache {_rate(cached)}, from storage {_rate(direct)} "
        f"on this node: {verdict}"
    )


def _find_fastest(timings: list[Timing], load_format: str, *, odirect: bool) -> Timing | None:
    found = [
        timing
        for timing in timings
        if timing.seconds and timing.candidate.load_format == load_format and timing.candidate.odirect == odirect
    ]
    return min(found, key=_order, default=None)


def _order(timing: Timing) -> tuple[bool, float]:
    """Fastest first; what was not repeated comes after what was, since one round says little."""
    return not timing.is_complete, timing.median_seconds


def _say(timing: Timing) -> str:
    return f"{timing.median_seconds:.2f} s, {_rate(timing)}"


def _rate(timing: Timing) -> str:
    return f"{format_bytes(timing.bytes_per_second)}/s"


def format_table(timings: list[Timing]) -> str:
    """Prints all candidates for people.

    Args:
        timings: In any order.

    Returns:
        Several lines, fastest first, and after them what was not repeated.
    """
    lines = [f"{'way to load':<58}{'median s':>9}{'rate':>14}{'from storage':>14}{'memory':>11}  rounds"]
    for timing in sorted(timings, key=_order):
        if not timing.seconds:
            lines.append(f"{timing.candidate!s:<58}{'-':>9}  {timing.refusal}")
            continue
        storage = "?" if timing.storage_bytes is None else format_bytes(timing.storage_bytes)
        note = f" ({timing.refusal})" if timing.refusal else ""
        lines.append(
            f"{timing.candidate!s:<58}{timing.median_seconds:>9.3f}{_rate(timing):>14}{storage:>14}"
            f"{format_bytes(timing.peak_bytes):>11}  {len(timing.seconds)}{note}"
        )
    return "\n".join(lines)
