"""A real Kubernetes for tests, without kubelets: etcd, API server, controller manager and scheduler on loopback."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from jobs import free_port
from outlast.system.prctl import die_with
from processes import PATIENCE, TEST_ID

TOKEN = "a-token-for-tests"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "outlast-platforms"
BINARIES = Path(os.environ.get("OUTLAST_PLATFORM_CACHE", CACHE)) / "kubernetes-1.20.2"
NEEDED = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


def missing() -> str:
    """What is not there, or nothing."""
    absent = [name for name in NEEDED if not (BINARIES / name).exists()]
    return ", ".join(absent + [name for name in ("etcd", "openssl", "kubectl") if not shutil.which(name)])


class ControlPlane:
    """The API server, by plain HTTP and by kubectl."""

    def __init__(self, place: Path, url: str) -> None:
        self.kubeconfig = place / "kubeconfig"
        self._url = url
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        clusters = [{"name": "t", "cluster": {"server": url, "insecure-skip-tls-verify": True}}]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": clusters,
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "admin"}}],
            "current-context": "t",
        }
        self.kubeconfig.write_text(json.dumps(config))

    def call(self, method: str, path: str, body: Any = None, patch: str = "merge-patch") -> tuple[int, dict[str, Any]]:
        """Status and body of one request."""
        kind = f"application/{patch}+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def ready(self) -> bool:
        request = urllib.request.Request(f"{self._url}/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=5) as answer:
                return bool(answer.read() == b"ok")
        except OSError:
            return False

    def kubectl(self, *words: str, given: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", *words]
        return subprocess.run(command, input=given, capture_output=True, text=True, check=check, timeout=PATIENCE)

    def add_node(self, name: str, **capacity: str) -> None:
        """A node that nobody runs: the scheduler places pods on it, and the test says what becomes of them."""
        self.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        room = {"cpu": "8", "memory": "32Gi", "pods": "110", **capacity}
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        conditions = [{"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": moment}]
        status = {"capacity": room, "allocatable": room, "conditions": conditions}
        self.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})
        # A new node is tainted as not ready, until the controller that is switched off here sees that it is.
        self.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}})


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition to be true, and return what it is."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, f"{what}: waited for in vain"
        time.sleep(0.05)
    return found


@contextmanager
def control_plane(place: Path, address: str = "127.0.0.1") -> Iterator[ControlPlane]:
    """Start one, and end it. With an address of its own, kubelets elsewhere can reach it."""
    etcd, peer, port, *others = (free_port() for _ in range(5))
    _make_keys(place)
    plane = ControlPlane(place, f"https://{address}:{port}")
    with ExitStack() as cleanup:

        def start(name: str, *flags: str, path: str = "") -> None:
            log = cleanup.enter_context(open(place / f"{name}.log", "wb"))
            environ = {key: value for key, value in os.environ.items() if key != TEST_ID}
            command = [path or str(BINARIES / name), *flags]
            process = subprocess.Popen(
                command, cwd=place, env=environ, stdout=log, stderr=log, preexec_fn=partial(die_with, os.getpid())
            )
            cleanup.callback(_end, process)

        url, peers = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
        start("etcd", *_flags(_etcd_flags(url, peers)), path=shutil.which("etcd") or "")
        start("kube-apiserver", *_flags(_server_flags(url, address, port)))
        until(plane.ready, "the API server")
        start("kube-controller-manager", *_flags(_manager_flags(others[0], kubelets=address != "127.0.0.1")))
        flags = {"kubeconfig": "kubeconfig", "leader-elect": "false", "secure-port": others[1], "port": 0}
        start("kube-scheduler", *_flags(flags))
        yield plane


def _end(process: subprocess.Popen[bytes]) -> None:
    # Started last, ended first: an API server without its etcd takes a minute to end.
    process.kill()
    process.wait()


def _flags(flags: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def _make_keys(place: Path) -> None:
    for command in (
        "genrsa -out sa.key 2048",
        "rsa -in sa.key -pubout -out sa.pub",
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=ca -days 3650",
    ):
        subprocess.run(["openssl", *command.split()], cwd=place, check=True, capture_output=True)
    (place / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')


def _etcd_flags(url: str, peers: str) -> dict[str, object]:
    return {
        "data-dir": "etcd",
        "listen-client-urls": url,
        "advertise-client-urls": url,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        "unsafe-no-fsync": "true",
    }


def _server_flags(etcd: str, address: str, port: int) -> dict[str, object]:
    return {
        "etcd-servers": etcd,
        "secure-port": port,
        "bind-address": address,
        "advertise-address": address,
        "kubelet-preferred-address-types": "InternalIP",
        "cert-dir": ".",
        "client-ca-file": "ca.crt",
        "token-auth-file": "tokens.csv",
        "service-account-key-file": "sa.pub",
        "service-account-signing-key-file": "sa.key",
        "service-account-issuer": "https://kubernetes.default.svc",
        "authorization-mode": "RBAC",
        "service-cluster-ip-range": "10.96.0.0/16",
        "allow-privileged": "true",
        "disable-admission-plugins": "ServiceAccount",
        "endpoint-reconciler-type": "none",
    }


def _manager_flags(port: int, *, kubelets: bool) -> dict[str, object]:
    return {
        "kubeconfig": "kubeconfig",
        "service-account-private-key-file": "sa.key",
        "use-service-account-credentials": "false",
        "leader-elect": "false",
        "controllers": f"*,-nodeipam,-route,-service,-cloud-node-lifecycle{'' if kubelets else ',-nodelifecycle'}",
        "node-monitor-period": "1s",
        "node-monitor-grace-period": "8s",
        "secure-port": port,
        "port": 0,
    }
