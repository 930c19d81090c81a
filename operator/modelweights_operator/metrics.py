"""What Prometheus reads at `/metrics`. Made by `__main__`, told by the connection, the queues and the reconciler.

Counters grow with what this process did and saw. What there is, as nodes by state, is taken from the statuses at the moment of
the question, and by the operator that acts alone: a standby knows of no objects. Labels are bounded by what people make: objects,
kinds of machines, reasons. No node has a series of its own.

The names are documented in docs/metrics.md; a test holds that both are the same.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from types import SimpleNamespace
from typing import Any, Final, Protocol

import aiohttp
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from modelweights_operator.domain.figures import Figures
from modelweights_operator.domain.outcomes import Outcome

Key = tuple[str, str]

_OBJECT: Final = ("namespace", "name")
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class State(Protocol):
    """What the acting operator knows."""

    def figures(self) -> Mapping[Key, Figures]:
        """Each ModelWeights."""
        ...

    def lengths(self) -> Mapping[str, int]:
        """Per queue, how many objects have something to do or wait for a time."""
        ...

    def counts(self) -> Mapping[str, int]:
        """What there is once in a cluster: `jobs_active`, `gated_pods`."""
        ...


@dataclass(frozen=True)
class CycleObserver:
    """Takes down the cycles of one queue."""

    _seconds: Histogram
    _errors: Counter

    def __call__(self, seconds: float, *, failed: bool) -> None:
        """A cycle took so long."""
        self._seconds.observe(seconds)
        if failed:
            self._errors.inc()


class Metrics:
    """All metrics of one process, in a registry of their own.

    Attributes:
        state: Who is asked for what there is; nobody in a standby.
    """

    def __init__(self) -> None:
        self.state: State | None = None
        # The times at which series were made would be as many series again.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        registry: dict[str, Any] = {"registry": self._registry}
        build = Gauge("modelweights_build_info", "The version that runs.", ["version"], **registry)
        build.labels(metadata.version("modelweights-operator")).set(1)
        self._requests = Counter(
            "modelweights_api_requests", "Requests to the API server.", ["verb", "code"], **registry
        )
        self._request_seconds = Histogram(
            "modelweights_api_request_seconds",
            "From the begin of a request to the head of its answer; watches aside.",
            ["verb"],
            buckets=_SECONDS,
            **registry,
        )
        self._cycle_seconds = Histogram(
            "modelweights_reconcile_seconds", "One cycle of a queue.", ["queue"], buckets=_SECONDS, **registry
        )
        self._cycle_errors = Counter(
            "modelweights_reconcile_errors", "Cycles that failed and are tried again.", ["queue"], **registry
        )
        machines = [*_OBJECT, "node_class"]
        self._stagings = Counter(
            "modelweights_stagings", "Stagings that ended.", [*machines, "result", "reason"], **registry
        )
        self._fetched = Counter("modelweights_fetched_bytes", "Bytes that came over the network.", machines, **registry)
        self._fetch_seconds = Counter("modelweights_fetch_seconds", "For how long was fetched.", machines, **registry)
        self._prefetched = Counter(
            "modelweights_prefetched_bytes", "Bytes that were read into page caches.", machines, **registry
        )
        self._prefetch_seconds = Counter(
            "modelweights_prefetch_seconds", "For how long was prefetched.", machines, **registry
        )
        self._loads = Counter(
            "modelweights_loads", "Loads of whole checkpoints that were proven.", machines, **registry
        )
        self._load_seconds = Counter(
            "modelweights_load_seconds", "For how long these loads took.", machines, **registry
        )
        self._of_objects = (
            self._stagings,
            self._fetched,
            self._fetch_seconds,
            self._prefetched,
            self._prefetch_seconds,
            self._loads,
            self._load_seconds,
        )
        self._registry.register(_State(self))

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def observer(self, queue: str) -> CycleObserver:
        """What is to be told of each cycle of a queue."""
        return CycleObserver(self._cycle_seconds.labels(queue), self._cycle_errors.labels(queue))

    def staged(self, key: Key, outcomes: Iterable[Outcome]) -> None:
        """Stagings of an object ended."""
        for each in outcomes:
            machine = (*key, each.node_class)
            self._stagings.labels(*machine, "succeeded" if each.succeeded else "failed", each.reason).inc()
            if each.fetch_seconds:
                self._fetched.labels(*machine).inc(each.fetched_bytes)
                self._fetch_seconds.labels(*machine).inc(each.fetch_seconds)
            if each.prefetch_bytes_per_second:
                self._prefetched.labels(*machine).inc(each.prefetched_bytes)
                self._prefetch_seconds.labels(*machine).inc(each.prefetched_bytes / each.prefetch_bytes_per_second)
            if each.load_seconds:
                self._loads.labels(*machine).inc()
                self._load_seconds.labels(*machine).inc(each.load_seconds)

    def forget(self, key: Key) -> None:
        """An object went, and its series with it."""
        labels = dict(zip(_OBJECT, key, strict=True))
        for metric in self._of_objects:
            metric.remove_by_labels(labels)

    @property
    def trace(self) -> aiohttp.TraceConfig:
        """Counts the requests of a connection."""

        async def begin(
            _: aiohttp.ClientSession, context: SimpleNamespace, what: aiohttp.TraceRequestStartParams
        ) -> None:
            context.began, context.verb = time.monotonic(), _verb(what)

        async def answered(
            _: aiohttp.ClientSession, context: SimpleNamespace, what: aiohttp.TraceRequestEndParams
        ) -> None:
            self._requests.labels(context.verb, str(what.response.status)).inc()
            if context.verb != "WATCH":
                self._request_seconds.labels(context.verb).observe(time.monotonic() - context.began)

        async def failed(
            _: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceRequestExceptionParams
        ) -> None:
            self._requests.labels(context.verb, "none").inc()

        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(begin)
        trace.on_request_end.append(answered)
        trace.on_request_exception.append(failed)
        return trace


def _verb(what: aiohttp.TraceRequestStartParams) -> str:
    return "WATCH" if what.url.query.get("watch") == "true" else what.method


class _State(Collector):
    """What there is at the moment of the question."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        """Nothing: asking for it at registration would ask the state."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All gauges; in a standby the one that says so."""
        state = self._metrics.state
        yield GaugeMetricFamily(
            "modelweights_acting", "Whether this process acts.", value=0.0 if state is None else 1.0
        )
        if state is not None:
            yield from _once(state)
            yield from _objects(state.figures())


def _once(state: State) -> Iterator[Metric]:
    lengths = GaugeMetricFamily(
        "modelweights_queue_length", "Keys that are worked on, or wait for a place or a time.", labels=["queue"]
    )
    for queue, length in state.lengths().items():
        lengths.add_metric([queue], length)
    yield lengths
    words = {
        "jobs_active": "Jobs of stagings and refreshes under way.",
        "gated_pods": "Pods at the gate.",
    }
    counts = state.counts()
    for name, text in words.items():
        yield GaugeMetricFamily(f"modelweights_{name}", text, value=counts[name])


def _objects(objects: Mapping[Key, Figures]) -> Iterator[Metric]:
    def family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"modelweights_{name}", text, labels=[*_OBJECT, *labels])

    conditions = family("condition", "Whether a condition is True.", "type")
    nodes = family("nodes", "Nodes that are to hold it, by their state.", "state")
    size = family("size_bytes", "Size of the published checkpoint.")
    resident = family("resident_bytes", "What page caches hold of it, all ready nodes together, as last measured.")
    least = family("resident_ratio_min", "What the ready node with the least of it has in its page cache, 0 to 1.")
    suspended = family("suspended", "Whether it is told to stage nothing.")
    for key, each in objects.items():
        for kind, holds in each.conditions.items():
            conditions.add_metric([*key, kind], holds)
        for state, count in each.nodes.items():
            nodes.add_metric([*key, state], count)
        size.add_metric(key, each.size_bytes)
        resident.add_metric(key, each.resident_bytes)
        suspended.add_metric(key, each.suspended)
        if each.least_resident is not None:
            least.add_metric(key, each.least_resident)
    yield from (conditions, nodes, size, resident, least, suspended)
