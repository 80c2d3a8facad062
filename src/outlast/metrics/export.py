"""Metrics as Prometheus reads them: served over HTTP, or in a file for node_exporter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from outlast.metrics.meter import Family

MISSING = "prometheus-client is not installed: pip install 'outlast[metrics]'"


class FamilyCollector:
    """What prometheus-client asks at every scrape."""

    def __init__(self, families: Callable[[float], list[Family]], labels: Callable[[], dict[str, str]]) -> None:
        self._families, self._labels = families, labels

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families = self._families(time.time())
        common = self._labels()
        for each in families:
            kind = CounterMetricFamily if each.kind == "counter" else GaugeMetricFamily
            names = list(dict.fromkeys([*common, *each.samples[0].labels]))
            made = kind(each.name, each.help, labels=names)
            for sample in each.samples:
                labels = {**common, **sample.labels}
                made.add_metric([labels[name] for name in names], sample.value)
            yield made


def registry(families: Callable[[float], list[Family]], labels: Callable[[], dict[str, str]]) -> Any:
    """A registry of these alone. Raises ValueError in one line without prometheus-client."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        raise ValueError(MISSING) from None
    made = CollectorRegistry(auto_describe=False)
    made.register(FamilyCollector(families, labels))
    return made


def serve(registry: Any, host: str, port: int) -> tuple[Any, int]:
    """Serve from a thread of this process. The server, and its port."""
    from prometheus_client import start_http_server

    server, _ = start_http_server(port, addr=host, registry=registry)
    return server, int(server.server_port)


def write(registry: Any, path: Path) -> None:
    """Replace the file: whoever reads it sees the old one or the new one."""
    from prometheus_client import write_to_textfile

    write_to_textfile(str(path), registry)


def text(registry: Any) -> str:
    from prometheus_client import generate_latest

    return str(generate_latest(registry).decode())
