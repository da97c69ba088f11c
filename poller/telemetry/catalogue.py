"""The metrics that there are: each with its name, its labels and what it means, declared once.

Law: whatever is exported was declared here, by one of the modules beside this one, so that a list of all is at hand.
Label values are bounded by the configuration or by a list that stands where the metric is declared; nothing that a
source, a sink or a record says becomes one.

Refuses to know what is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

Kind = Literal["counter", "gauge", "histogram"]

Sample = tuple[str, float]
"""Labels as they are written, empty where there are none, and a value."""

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

REGISTRY: Final = CollectorRegistry()
"""What this process counts of itself."""

disable_created_metrics()  # type: ignore[no-untyped-call]  # as it is; when a series began, its process did, too
ProcessCollector(registry=REGISTRY)


class Described(msgspec.Struct, frozen=True):
    """A metric.

    Attributes:
        name: as it is exported.
        kind: of metric.
        labels: their names.
        text: what it means, with its unit.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    text: str

    def block(self, samples: Iterable[Sample], *, openmetrics: bool) -> str:
        """Its series as text, for those that the library does not collect: it takes twenty times as long for many."""
        name, own = self.name.removesuffix("_total") if openmetrics else self.name, self.name
        head = f"# HELP {name} {self.text}\n# TYPE {name} {self.kind}\n"
        return head + "".join([f"{own}{labels} {value}\n" for labels, value in samples])


def labelled(**labels: str) -> str:
    """Labels as they are written."""
    return "{" + ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()]) + "}"


_described: dict[str, Described] = {}


def described() -> Iterator[Described]:
    """All that were declared, in the order of their declaration."""
    yield from _described.values()


def declared(name: str, kind: Kind, text: str, *labels: str) -> Described:
    """Declare one that somebody else collects."""
    if name in _described:
        raise ValueError(f"{name} is declared twice")
    found = _described[name] = Described(name, kind, labels, text)
    return found


def counter(name: str, text: str, *labels: str) -> Counter:
    """A counter of this process; ``name`` ends in ``_total``."""
    declared(name, "counter", text, *labels)
    return Counter(name, text, labels, registry=REGISTRY)


def gauge(name: str, text: str, *labels: str) -> Gauge:
    """Something that goes up and down."""
    declared(name, "gauge", text, *labels)
    return Gauge(name, text, labels, registry=REGISTRY)


def histogram(name: str, text: str, *labels: str, bounds: Sequence[float]) -> Histogram:
    """Durations in seconds, counted by their upper ``bounds``."""
    declared(name, "histogram", text, *labels)
    return Histogram(name, text, labels, registry=REGISTRY, buckets=bounds)
