"""The metrics of a webhook: reviews and their duration, and the syncs and writes of hints."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from keepclose.model.meta import NamespacedName
from keepclose.runtime.workers import Result

_BUCKETS: Final = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)


class WebhookMetrics:
    """The metrics of one webhook, in a registry of their own; nothing here blocks or raises."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reviews = Counter(
            "keepclose_webhook_reviews",
            "Slices that the API server sent for review, by result.",
            ("verdict",),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "keepclose_webhook_review_seconds",
            "Time from the body of a review to the body of its answer.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._writes = Counter(
            "keepclose_hint_writes",
            "Slices whose hints the leader set itself, outside of a review.",
            registry=self.registry,
        )
        self._losses = Counter(
            "keepclose_hint_losses",
            "Updates that removed hints without a review.",
            registry=self.registry,
        )
        self._syncs = Counter(
            "keepclose_hint_syncs", "Syncs of Services.", ("result",), registry=self.registry
        )
        self._failures = Counter(
            "keepclose_heuristic_failures",
            "Syncs without hints because a custom heuristic failed, by its name and by cause.",
            ("heuristic", "cause"),
            registry=self.registry,
        )

    def reviewed(self, verdict: str, seconds: float) -> None:
        """Record a review and its duration."""
        self._reviews.labels(verdict).inc()
        self._seconds.observe(seconds)

    def failed(self, heuristic: str, cause: str) -> None:
        """Record that a custom heuristic failed."""
        self._failures.labels(heuristic, cause).inc()

    def written(self) -> None:
        """Record that the API server accepted a write of hints."""
        self._writes.inc()

    def lost(self) -> None:
        """Record that hints were removed without a review."""
        self._losses.inc()

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Record the end of a sync."""
        del key, seconds
        self._syncs.labels(result.value).inc()

    def page(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
