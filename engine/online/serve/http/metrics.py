"""`GET /metrics` for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LATENCY_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ServerMetrics:
    """Counters of one server, in its own registry."""

    def __init__(self, *, waiting: Callable[[], int], version: Callable[[], int], learning: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "grpo_tui_http_requests", "Requests by path and status.", ("path", "status"), registry=self.registry
        )
        self.latency = Histogram(
            "grpo_tui_answer_seconds",
            "From a question's arrival to its answer.",
            buckets=LATENCY_S,
            registry=self.registry,
        )
        self.tokens = Counter(
            "grpo_tui_tokens", "Tokens of all rollouts of answered questions.", ("kind",), registry=self.registry
        )
        for name, text, value in (
            ("grpo_tui_waiting", "Questions that wait for the engine.", waiting),
            ("grpo_tui_policy_version", "The policy version that serves.", version),
            ("grpo_tui_learning", "1 while the update worker lives.", learning),
        ):
            gauge = Gauge(name, text, registry=self.registry)
            gauge.set_function(lambda value=value: float(value()))

    def text(self) -> bytes:
        return generate_latest(self.registry)
