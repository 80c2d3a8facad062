"""An operator that is killed again and again while pods are deleted, on real kubelets."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from real_jobs import NAMESPACE, Cluster

from control_plane import ControlPlane, until
from outlast.k8s.observed import SLOT_LABEL
from outlast.system.prctl import die_with
from processes import Process, python

SLOTS, DELETIONS, AT_ONCE, LIFE = 10, 50, 8, 5.0  # a new operator every 5 seconds
WAITS = "trap 'exit 0' TERM; sleep 1000 & wait"


class PodWatch:
    """What was ever seen of the pods of a job."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.known: dict[str, str] = {}  # by uid: the name
        self.here: set[str] = set()
        self.twice: list[list[str]] = []  # live pods of one slot

    def look(self) -> dict[str, dict[str, Any]]:
        """The pods that live, by name."""
        items = self.cluster.plane.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")[1]["items"]
        self.known |= {each["metadata"]["uid"]: each["metadata"]["name"] for each in items}
        live = [each for each in items if _lives(each)]
        self.here = {each["metadata"]["uid"] for each in live}
        slots: dict[str, list[str]] = {}
        for each in live:
            slots.setdefault(each["metadata"]["labels"][SLOT_LABEL], []).append(each["metadata"]["name"])
        self.twice += [names for names in slots.values() if len(names) > 1]
        return {each["metadata"]["name"]: each for each in live}

    @contextmanager
    def all_the_time(self) -> Iterator[None]:
        over = threading.Event()

        def run() -> None:
            while not over.wait(0.05):
                self.look()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _lives(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def operator_of(kubeconfig: Path) -> Process:
    """As in a pod that is restarted: it has the same name, and the same process id, so the lease is still its own."""
    command = ["-m", "outlast", "k8s", "operator", f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}"]
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return Process([*alone, python(), *command], preexec_fn=partial(die_with, os.getpid()))


@pytest.mark.timeout(600)
def test_an_operator_that_is_killed_every_5_seconds_runs_no_slot_twice_and_touches_no_healthy_pod(
    nodes_of_three: ControlPlane, tmp_path: Path
) -> None:
    cluster = Cluster(nodes_of_three, tmp_path)
    kubeconfig, draw = cluster.kubeconfig_of_the_operator(), random.Random(20)
    watch, deleted = PodWatch(cluster), set[str]()
    try:
        with operator_of(kubeconfig):
            cluster.small("busy", WAITS, SLOTS, drain={"gracePeriod": "2s", "preStop": False})
            until(lambda: len(watch.look()) == SLOTS, "all pods")
        with watch.all_the_time():
            while len(deleted) < DELETIONS:
                with operator_of(kubeconfig):  # it is killed at the end, with kill -9
                    began = time.monotonic()
                    pods = watch.look()
                    for name in draw.sample(sorted(pods), min(AT_ONCE, len(pods))):
                        cluster.kubectl("delete", "pod", name, "--wait=false")
                        deleted.add(pods[name]["metadata"]["uid"])
                    time.sleep(max(0.0, began + LIFE - time.monotonic()))
            with operator_of(kubeconfig):
                until(lambda: len(watch.look()) == SLOTS, "all pods in the end")
        assert not watch.twice
        gone = watch.known.keys() - watch.here
        assert gone == deleted, f"nobody has deleted {[watch.known[uid] for uid in gone - deleted]}"
    finally:
        cluster.clean()  # also for the tests that share these nodes
