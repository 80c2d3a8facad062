"""Where a job stands."""

from __future__ import annotations

from enum import Enum


class Phase(str, Enum):
    """FORMING, RUNNING, STOPPING, and again; GATHERING where a coordinator comes to a running job."""

    GATHERING = "gathering"
    FORMING = "forming"
    RUNNING = "running"
    STOPPING = "stopping"
    OVER = "over"
