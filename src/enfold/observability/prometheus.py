"""Metrics in the Prometheus text format, written by prometheus-client, which is imported on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from enfold.observability.metrics import BOUNDS, CountsSnapshot

_LABELS: Final = ("operation", "source", "code")
# Gauges by internal name: exported name, label and help text.
_GAUGES: Final = {
    "calls_in_flight": ("enfold_calls_in_flight", None, "Calls in progress, including nested ones."),
    "streams_open": ("enfold_streams_open", None, "Open streams."),
    "sessions": ("enfold_sessions", "surface", "Open client sessions."),
    "tasks": ("enfold_tasks", "state", "Tasks by state."),
}


def written(counts: CountsSnapshot, accept: str) -> tuple[bytes, str]:
    """Return the text and its content type: the classic format, or OpenMetrics if accepted."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Counts(counts))
    try:
        return _encoded(registry, accept)
    except (ValueError, TypeError):  # an invalid version: use the classic format
        return _encoded(registry, "")


def _encoded(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Counts(Collector):
    def __init__(self, counts: CountsSnapshot) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts, by_source = self._counts, ("source", "kind")
        refusals = CounterMetricFamily("enfold_refusals", "Calls rejected before they ran.", labels=("surface", "code"))
        sources = GaugeMetricFamily("enfold_source_up", "Whether a source is up: 1 or 0.", labels=by_source)
        changes = CounterMetricFamily(
            "enfold_definition_changes", "Operations whose definitions changed in a source.", labels=by_source
        )
        yield from _calls(counts)
        yield _filled(refusals, counts.refusals)
        yield from _gauges(counts)
        yield _filled(sources, counts.sources)
        yield _filled(changes, counts.changes)


def _calls(counts: CountsSnapshot) -> Iterator[Metric]:
    calls = CounterMetricFamily("enfold_calls", "Finished calls.", labels=_LABELS)
    times = HistogramMetricFamily("enfold_call_duration_seconds", "Duration of calls.", labels=_LABELS)
    for operation, source, code, row in counts.rows:
        total, buckets = 0.0, []
        for bound, number in zip([*map(str, BOUNDS), "+Inf"], row, strict=False):
            total += number
            buckets.append((bound, total))
        calls.add_metric([operation, source, code], total)
        times.add_metric([operation, source, code], buckets, row[-1])
    yield calls
    yield times


def _gauges(counts: CountsSnapshot) -> Iterator[Metric]:
    families: dict[str, Any] = {}
    for name, word, value in counts.gauges:
        if name not in _GAUGES:
            continue
        outside, label, sentence = _GAUGES[name]
        if name not in families:
            families[name] = GaugeMetricFamily(outside, sentence, labels=() if label is None else (label,))
        families[name].add_metric([] if label is None else [word], value)
    yield from families.values()


def _filled(family: CounterMetricFamily | GaugeMetricFamily, rows: Iterable[tuple[str, str, float]]) -> Metric:
    for first, second, value in rows:
        family.add_metric([first, second], value)
    return family
