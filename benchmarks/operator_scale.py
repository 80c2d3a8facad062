"""One operator with many jobs: what it costs to start them, to watch them, and to heal them.

    python benchmarks/operator_scale.py [--jobs 1000] [--pods 2] [--idle 30] [--faults 100]

A real API server with its etcd and garbage collector (scripts/install-k8s); kubelets are played by this script, and
coordinators are not asked, for there are none. The operator runs in a process of its own, which counts its requests
and measures each reconcile, from its first look to the last reply.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "platforms" / "k8s")]

from control_plane import ControlPlane, control_plane, until  # noqa: E402
from outlast.k8s import crd  # noqa: E402
from outlast.k8s.client import ApiClient, connect  # noqa: E402
from outlast.k8s.execution import ApiReply, ApiRequest, job_path  # noqa: E402
from outlast.k8s.mirror import Key  # noqa: E402
from outlast.k8s.operator import Operator  # noqa: E402

SPACE = "jobs"
PODS = f"/api/v1/namespaces/{SPACE}/pods"


class MeasuredOperator(Operator):
    """Counts what it sends, and measures each reconcile."""

    requests = 0

    def __init__(self, client: ApiClient) -> None:
        super().__init__(client, namespace=SPACE, identity="measured", home=SPACE)
        self.took: list[float] = []
        send = client.send

        async def counted(request: ApiRequest) -> ApiReply:
            self.requests += 1
            return await send(request)

        client.send = counted  # type: ignore[method-assign]

    async def _reconcile(self, key: Key) -> None:
        began = time.perf_counter()
        await super()._reconcile(key)
        self.took.append(time.perf_counter() - began)

    def tell(self) -> None:
        """What was done since the last time, as one line."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        told = {"took": self.took, "requests": self.requests, "cpu": usage.ru_utime + usage.ru_stime, "memory": memory}
        print(json.dumps(told), flush=True)
        self.took, self.requests = [], 0


async def serve(kubeconfig: str) -> None:
    """The operator, in a process of its own."""
    async with connect(kubeconfig) as client:
        operator = MeasuredOperator(client)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, operator.tell)
        print("ready", flush=True)
        await operator.run()


class Fleet:
    """The jobs, and somebody who plays their kubelets."""

    def __init__(self, plane: ControlPlane, jobs: int, pods: int) -> None:
        self.plane, self.jobs, self.pods = plane, jobs, pods
        self.over = threading.Event()
        self.running: set[str] = set()

    def submit(self) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self._submit, range(self.jobs)))

    def _submit(self, number: int) -> None:
        container = {"name": "main", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}
        template = {"spec": {"nodeName": "played", "containers": [container]}}
        worker = {"replicas": self.pods, "template": template}
        spec = {"replicaSpecs": {"worker": worker}, "elasticPolicy": {"minReplicas": 1, "maxReplicas": self.pods}}
        body = {"apiVersion": "outlast.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": f"job-{number}"}}
        status, answer = self.plane.call("POST", job_path(SPACE), {**body, "spec": spec})
        assert status == 201, answer

    def play(self) -> None:
        """Start pods that are there and do not run."""
        with ThreadPoolExecutor(8) as pool:
            while not self.over.is_set():
                items = self.plane.call("GET", PODS)[1]["items"]
                new = [each["metadata"]["name"] for each in items if each["status"].get("phase") == "Pending"]
                list(pool.map(self._start, new))
                self.running |= set(new)
                time.sleep(0.2)

    def _start(self, pod: str) -> None:
        self.plane.call("PATCH", f"{PODS}/{pod}/status", {"status": {"phase": "Running", "podIP": "10.1.0.1"}})

    def all_run(self) -> bool:
        items = self.plane.call("GET", job_path(SPACE))[1]["items"]
        want = f"{self.pods}/1:{self.pods}"
        return sum(each.get("status", {}).get("nodes") == want for each in items) == self.jobs

    def fail(self, number: int) -> float:
        """The node of a pod is faulty. Seconds until its replacement is there."""
        ended = {"terminated": {"exitCode": 14, "reason": "Error"}}
        container = {"name": "main", "image": "x", "imageID": "", "restartCount": 0, "ready": False, "state": ended}
        status = {"status": {"phase": "Failed", "containerStatuses": [container]}}
        self.plane.call("PATCH", f"{PODS}/job-{number}-worker-0-0/status", status)
        began = time.perf_counter()
        path = f"{PODS}/job-{number}-worker-0-1"
        until(lambda: self.plane.call("GET", path)[0] == 200, "the replacement")
        return time.perf_counter() - began


def percentile(seen: list[float], part: float) -> float:
    return sorted(seen)[min(len(seen) - 1, int(len(seen) * part))]


class Measured:
    """The operator's process."""

    def __init__(self, plane: ControlPlane) -> None:
        command = [sys.executable, __file__, f"--serve={plane.kubeconfig}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.cpu, self.since = 0.0, time.perf_counter()

    def show(self, what: str) -> None:
        self.process.send_signal(signal.SIGUSR1)
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        now = time.perf_counter()
        spent, lasted, took = told["cpu"] - self.cpu, now - self.since, told["took"] or [0.0]
        self.cpu, self.since = told["cpu"], now
        print(
            f"{what:22} {lasted:6.1f} s   CPU {spent:6.2f} s ({100 * spent / lasted:5.1f} %)   "
            f"memory {told['memory'] / 2**20:4.0f} MiB   {told['requests']:6} requests   "
            f"{len(told['took']):5} reconciles: p50 {1000 * statistics.median(took):5.0f} ms, "
            f"p99 {1000 * percentile(took, 0.99):5.0f} ms",
            flush=True,
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--jobs", type=int, default=1000)
    options.add_argument("--pods", type=int, default=2)
    options.add_argument("--idle", type=float, default=30)
    options.add_argument("--faults", type=int, default=100)
    options.add_argument("--serve", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.serve:
        asyncio.run(serve(args.serve))
        return
    with tempfile.TemporaryDirectory() as place, control_plane(Path(place)) as plane:
        plane.kubectl("apply", "-f", "-", given=json.dumps(crd.manifest()))
        until(lambda: plane.kubectl("get", "ej", check=False).returncode == 0, "the resource")
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
        plane.add_node("played", pods="100000", cpu="100000")
        measure(plane, args)


def measure(plane: ControlPlane, args: argparse.Namespace) -> None:
    fleet, operator = Fleet(plane, args.jobs, args.pods), Measured(plane)
    kubelets = threading.Thread(target=fleet.play)
    kubelets.start()
    try:
        fleet.submit()
        until(fleet.all_run, "all jobs")
        operator.show(f"{args.jobs} jobs start")
        time.sleep(args.idle)
        operator.show("idle")
        with ThreadPoolExecutor(8) as pool:
            waits = list(pool.map(fleet.fail, range(args.faults)))
        operator.show(f"{args.faults} pods fail")
        print(f"from failure to replacement: p50 {statistics.median(waits):.2f} s, p99 {percentile(waits, 0.99):.2f} s")
    finally:
        fleet.over.set()
        kubelets.join()
        operator.process.terminate()
        operator.process.wait()


if __name__ == "__main__":
    main()
