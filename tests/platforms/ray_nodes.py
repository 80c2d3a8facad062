"""A real Ray cluster of several nodes on this machine, in a process apart: `ray_nodes.py SOCKET`.

It is nobody's child, and asked over a socket: so what Ray starts later is not taken for what a test has left behind.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Listener
from typing import Any

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_initial_delay_ms": "0",
}

from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason

STORE = 80 << 20  # bytes, the least that Ray takes
PREEMPTION = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")


class RayNodes:
    """The head, which has no room for agents, and the nodes beside it."""

    def __init__(self) -> None:
        head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: dict[str, Any] = {}

    def add(self) -> str:
        node = self.cluster.add_node(num_cpus=2, object_store_memory=STORE)
        self.nodes[node.node_id] = node
        return str(node.node_id)

    def remove(self, node_id: str) -> None:
        """As a machine that is switched off."""
        self.cluster.remove_node(self.nodes.pop(node_id), allow_graceful=False)

    def drain(self, node_id: str, seconds: float) -> str:
        client = GcsClient(address=self.cluster.gcs_address)
        taken, why = client.drain_node(node_id, PREEMPTION, "a test", int((time.time() + seconds) * 1000))
        return "" if taken else str(why)

    def alive(self) -> list[str]:
        return list(self.nodes)

    def address(self) -> str:
        return str(self.cluster.address)


def main() -> None:
    with Listener(sys.argv[1], "AF_UNIX") as listener:
        nodes = RayNodes()
        while True:
            with listener.accept() as client:
                name, *args = client.recv()
                if name == "close":
                    nodes.cluster.shutdown()
                    client.send(None)
                    return
                client.send(getattr(nodes, name)(*args))


if __name__ == "__main__":
    main()
