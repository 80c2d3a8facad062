"""Who is in the job, on several hosts: nodes that come, go, die and are replaced."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts import Host
from membership.job import QUICK, ElasticJob, reason

Hosts = Callable[[int], list[Host]]


def test_a_job_starts_at_once_when_max_nodes_are_there(hosts: Hosts, tmp_path: Path) -> None:
    with ElasticJob(hosts(2), tmp_path, "--nnodes=1:2", "--ft-last-call=600") as job:
        nodes = job.start_all()
        assert job.line_up(*nodes).generation == 1
        job.succeeds(*nodes)
