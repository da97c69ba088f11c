"""Reading exported metrics as Prometheus does: by name and labels."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from poller.telemetry.metrics import process_metrics

Key = tuple[str, frozenset[tuple[str, str]]]


def key(name: str, **labels: str) -> Key:
    return name, frozenset(labels.items())


def values(text: bytes | str) -> dict[Key, float]:
    """All samples of an exposition."""
    text = text if isinstance(text, str) else text.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(name: str, /, **labels: str) -> float | None:
    """One sample of this process, or None without such a series."""
    metrics = process_metrics()
    found = metrics.registry.get_sample_value(name, labels)
    return values("".join(metrics.blocks(openmetrics=False))).get(key(name, **labels)) if found is None else found


def grown(name: str, /, **labels: str) -> float:
    """One sample of this process, or 0 without such a series; tests in one process share its counters."""
    return value(name, **labels) or 0.0
