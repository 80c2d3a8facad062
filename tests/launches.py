"""A plain job: what its user asked for, and where a node stands in a generation. Tests change what they are about."""

from __future__ import annotations

from typing import Any

from outlast.launch import Endpoint, Launch
from outlast.protocol.generations import Assignment


def launch(**changes: Any) -> Launch:
    """One node of one worker, which nobody else can join."""
    asked: dict[str, Any] = {
        "job": "job",
        "min_nodes": 1,
        "max_nodes": 1,
        "nproc": 1,
        "role": "trainer",
        "command": ("python", "-u", "train.py"),
        "entrypoint": "train.py",
        "endpoint": Endpoint("localhost", 0),
    }
    return Launch(**{**asked, **changes})


def assignment(**changes: Any) -> Assignment:
    """The second of two nodes with four workers each."""
    place: dict[str, Any] = {
        "generation": 1,
        "group_rank": 1,
        "group_world_size": 2,
        "first_rank": 4,
        "world_size": 8,
        "role_rank": 4,
        "role_world_size": 8,
        "master_addr": "node-0",
        "master_port": 29500,
        "restart_count": 0,
    }
    return Assignment(**{**place, **changes})
