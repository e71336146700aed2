"""Counts and times of a server, in the text form that Prometheus reads (version 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

TEXT_FORM = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The bounds of histograms."""
Labels = tuple[tuple[str, str], ...]


class Histogram:
    """How many observations there were up to each of `SECONDS`, and their sum."""

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(SECONDS) + 1), 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count an observation, or several of one time."""
        self.counts[bisect_left(SECONDS, seconds)] += times
        self.sum += seconds * times


class Metrics:
    """Counters by name and labels, histograms by name, and gauges that are asked when read.

    >>> from meta.base.metrics import Metrics
    >>> metrics = Metrics({"requests_total": "Requests."})
    >>> metrics.count("requests_total", status="200")
    >>> print(metrics.text(), end="")
    # HELP meta_requests_total Requests.
    # TYPE meta_requests_total counter
    meta_requests_total{status="200"} 1
    """

    def __init__(self, helps: dict[str, str]) -> None:
        self._helps = helps
        self._counts: dict[str, dict[Labels, float]] = {}
        self._gauges: dict[str, Callable[[], float]] = {}
        self._histograms: dict[str, Histogram] = {}

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to a counter."""
        series = self._counts.setdefault(name, {})
        key = tuple(sorted(labels.items()))
        series[key] = series.get(key, 0) + by

    def gauge(self, name: str, value: Callable[[], float]) -> None:
        """Show what a function returns."""
        self._gauges[name] = value

    def observe(self, name: str, seconds: float, times: int = 1) -> None:
        """Add to a histogram."""
        self._histograms.setdefault(name, Histogram()).add(seconds, times)

    def text(self) -> str:
        """Return all of them, in the order of the helps."""
        lines = []
        for name, help in self._helps.items():
            series = self._series(name)
            if series:
                kind = "gauge" if name in self._gauges else "counter"
                kind = "histogram" if name in self._histograms else kind
                lines += [f"# HELP meta_{name} {help}", f"# TYPE meta_{name} {kind}", *series]
        return "".join(f"{line}\n" for line in lines)

    def _series(self, name: str) -> list[str]:
        if name in self._gauges:
            return [f"meta_{name} {self._gauges[name]():g}"]
        if name in self._histograms:
            histogram, seen, lines = self._histograms[name], 0, []
            for bound, count in zip((*SECONDS, "+Inf"), histogram.counts, strict=True):
                seen += count
                lines.append(f'meta_{name}_bucket{{le="{bound}"}} {seen}')
            return [*lines, f"meta_{name}_sum {histogram.sum:g}", f"meta_{name}_count {seen}"]
        return [
            f"meta_{name}{_shown(labels)} {value:.17g}"
            for labels, value in self._counts.get(name, {}).items()
        ]


def _shown(labels: Labels) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    inner = ",".join(f'{name}="{escaped(value)}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""
