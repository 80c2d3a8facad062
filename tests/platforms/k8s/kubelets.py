"""Real nodes for the control plane: each a network namespace with its own containerd, kubelet and kube-proxy.

Pods run the Python of this machine, by host paths: their image holds a shell and nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from control_plane import BINARIES, ControlPlane, until
from outlast.system.prctl import die_with
from processes import TEST_ID

GATEWAY = "10.77.0.1"
BRIDGE = "olk8s"
IMAGE, PAUSE = "localhost/shell:1", "localhost/pause:1"
NEEDED = ("containerd", "ctr", "runc", "iptables", "busybox")
CGROUPS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
CONTAINERD = """\
version = 2
root = "{place}/root"
state = "{place}/state"
[grpc]
  address = "{place}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_tcp_service = true
  stream_server_address = "{address}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{place}/cni"
"""


def missing_for_nodes() -> str:
    """What is not there, or nothing."""
    absent = [name for name in ("kubelet", "kube-proxy") if not (BINARIES / name).exists()]
    absent += [name for name in NEEDED if not shutil.which(name)]
    if not Path("/sys/fs/cgroup/memory").is_dir():
        absent.append("cgroups of version 1")
    return ", ".join(absent)


def python_volumes(*more: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Mounts and volumes that make this machine's Python, and further folders, work in a pod."""
    folders = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}
    for folder in (sys.base_prefix, sys.prefix, *(each for each in sys.path if each and Path(each).is_dir()), *more):
        folders.setdefault(str(folder), str(folder))
    names = {target: f"host-{number}" for number, target in enumerate(folders)}
    mounts = [{"name": names[target], "mountPath": target} for target in folders]
    return mounts, [{"name": names[target], "hostPath": {"path": source}} for target, source in folders.items()]


def _sh(*words: object, check: bool = True) -> None:
    subprocess.run([str(word) for word in words], check=check, capture_output=True)


def pack(name: str, folder: Path, command: list[str], out: Path) -> None:
    """An image of one layer, without a registry."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(folder, arcname=".")
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": command},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(out, "w") as tar:
        for file, content in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(file)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def make_images(place: Path) -> list[Path]:
    """A shell, and what holds a pod's namespaces open."""
    folder = place / "image"
    (folder / "bin").mkdir(parents=True)
    for each in ("tmp", "dev", "proc", "sys", "etc"):
        (folder / each).mkdir()
    shutil.copy(shutil.which("busybox") or "", folder / "bin" / "busybox")
    for applet in ("sh", "sleep", "cat", "env", "kill", "ps", "tail", "grep", "awk"):
        (folder / "bin" / applet).symlink_to("busybox")
    shell, pause = place / "shell.tar", place / "pause.tar"
    pack(IMAGE, folder, ["sh"], shell)
    pack(PAUSE, folder, ["sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait; done"], pause)
    return [shell, pause]


@contextmanager
def nodes(plane: ControlPlane, place: Path, number: int) -> Iterator[list[str]]:
    """So many nodes, ready. The bridge must be there already."""
    images = make_images(place)
    names = [f"kn{index}" for index in range(1, number + 1)]
    with ExitStack() as cleanup:
        for index, name in enumerate(names, 1):
            cleanup.enter_context(_node(plane, place / name, name, index, number, images))

        def ready() -> bool:
            items = plane.call("GET", "/api/v1/nodes")[1]["items"]
            conditions = [each for item in items for each in item["status"].get("conditions") or ()]
            return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions) == number

        until(ready, "nodes")
        yield names


@contextmanager
def bridge() -> Iterator[str]:
    """The wire between the nodes; its address."""
    with _only_one():
        _sh("ip", "link", "del", BRIDGE, check=False)  # of one that was killed
        _sh("ip", "link", "add", BRIDGE, "type", "bridge")
        _sh("ip", "addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
        _sh("ip", "link", "set", BRIDGE, "up")
        _sh("sysctl", "-qw", "net.ipv4.ip_forward=1")
        yield GATEWAY
        _sh("ip", "link", "del", BRIDGE)


@contextmanager
def _only_one() -> Iterator[None]:
    """Names and addresses of the nodes are fixed: a second cluster on this machine waits for the end of the first."""
    with open(BINARIES / "cluster.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _node(plane: ControlPlane, place: Path, name: str, index: int, number: int, images: list[Path]) -> Iterator[None]:
    place.mkdir()
    address = f"10.77.0.{10 + index}"
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, place, ignore_errors=True)
        holder = cleanup.enter_context(_own_namespaces(place))
        _wire(name, address, index, number)
        cleanup.callback(_sh, "ip", "netns", "del", name, check=False)
        for group in CGROUPS:
            Path(f"/sys/fs/cgroup/{group}/{name}").mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            whole = Path(f"/sys/fs/cgroup/cpuset/{file}").read_text()
            Path(f"/sys/fs/cgroup/cpuset/{name}/{file}").write_text(whole)
        _configure(place, name, address, index)

        def start(program: str, *flags: str) -> None:
            log = cleanup.enter_context(open(place.parent / f"{name}.{Path(program).name}.log", "wb"))
            environ = {**_environ(), "AWS_EC2_METADATA_DISABLED": "true"}
            proc = f"/proc/{holder.pid}/ns"
            where = [f"--net=/run/netns/{name}", f"--mount={proc}/mnt", f"--pid={proc}/pid_for_children"]
            process = subprocess.Popen(["nsenter", *where, program, *flags], env=environ, stdout=log, stderr=log)
            cleanup.callback(process.wait)
            cleanup.callback(holder.kill)

        socket = place / "containerd.sock"
        start("containerd", "-c", str(place / "containerd.toml"))
        ctr = ["ctr", "-a", str(socket), "-n", "k8s.io"]
        until(lambda: subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode == 0, "containerd")
        for image in images:
            _sh(*ctr, "images", "import", image)
        start(
            str(BINARIES / "kubelet"),
            f"--kubeconfig={plane.kubeconfig}",
            f"--config={place / 'kubelet.yaml'}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{socket}",
            f"--hostname-override={name}",
            f"--node-ip={address}",
            f"--root-dir={place / 'kubelet'}",
            f"--cert-dir={place / 'pki'}",
            f"--pod-infra-container-image={PAUSE}",
        )
        start(
            str(BINARIES / "kube-proxy"),
            f"--kubeconfig={plane.kubeconfig}",
            f"--hostname-override={name}",
            "--proxy-mode=iptables",
            "--cluster-cidr=10.88.0.0/16",
            "--conntrack-max-per-core=0",
        )
        yield


@contextmanager
def cut_off(name: str) -> Iterator[None]:
    """Nothing reaches a node, and nothing comes from it."""
    _sh("ip", "link", "set", f"v{name}", "down")
    try:
        yield
    finally:
        _sh("ip", "link", "set", f"v{name}", "up")


@contextmanager
def silenced(node: str, address: str) -> Iterator[None]:
    """All packets from and to a pod are lost on its node."""
    rules = [("-s", address), ("-d", address)]
    where = ("nsenter", f"--net=/run/netns/{node}", "iptables")
    for rule in rules:
        _sh(*where, "-I", "FORWARD", *rule, "-j", "DROP")
    try:
        yield
    finally:
        for rule in rules:
            _sh(*where, "-D", "FORWARD", *rule, "-j", "DROP")


def _wire(name: str, address: str, index: int, number: int) -> None:
    _sh("ip", "netns", "del", name, check=False)
    _sh(
        "ip", "link", "del", f"v{name}", check=False
    )  # the kernel takes its time with those of a namespace that is gone
    _sh("ip", "netns", "add", name)
    _sh("ip", "link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
    _sh("ip", "link", "set", f"v{name}", "master", BRIDGE, "up")
    _sh("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
    _sh("ip", "-n", name, "link", "set", "eth0", "up")
    _sh("ip", "-n", name, "link", "set", "lo", "up")
    _sh("ip", "-n", name, "route", "add", "default", "via", GATEWAY)
    _sh("nsenter", f"--net=/run/netns/{name}", "sysctl", "-qw", "net.ipv4.ip_forward=1")
    _sh("ip", "route", "replace", f"10.88.{index}.0/24", "via", address)
    for other in range(1, number + 1):
        if other != index:
            _sh("ip", "-n", name, "route", "replace", f"10.88.{other}.0/24", "via", f"10.77.0.{10 + other}")


def _configure(place: Path, name: str, address: str, index: int) -> None:
    # No name server: torch asks for names, and would wait long for one that cannot be reached.
    (place / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    (place / "cni").mkdir()
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": f"10.88.{index}.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(place / "ipam"),
    }
    plugin = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": ipam}
    network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]}
    (place / "cni" / "10.conflist").write_text(json.dumps(network))
    (place / "containerd.toml").write_text(CONTAINERD.format(place=place, pause=PAUSE, address=address))
    kubelet = {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "address": address,
        "readOnlyPort": 0,
        "healthzBindAddress": address,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{name}",
        "failSwapOn": False,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "nodeStatusUpdateFrequency": "2s",
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "resolvConf": str(place / "resolv.conf"),
    }
    (place / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))


@contextmanager
def _own_namespaces(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with mounts and processes of its own. With it ends all that runs in there, even if this one is killed.

    Kubelets that shared /var/log/pods would clear away each other's pods.
    """
    logs = place / "pods"
    logs.mkdir()
    for folder in ("/var/log/pods", "/run/netns"):
        Path(folder).mkdir(exist_ok=True)
    script = f"""
        mount --bind {logs} /var/log/pods && mount -t tmpfs tmpfs /run/netns && echo ready
        while :; do sleep 3600 & wait; done  # the first process has to collect those that nobody waits for
    """
    flags = ("--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc")
    with subprocess.Popen(
        ["unshare", *flags, "sh", "-c", script],
        env=_environ(),
        stdout=subprocess.PIPE,
        preexec_fn=partial(die_with, os.getpid()),
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
            yield holder
        finally:
            holder.kill()


def _environ() -> dict[str, str]:
    """Of processes that outlive a test."""
    return {key: value for key, value in os.environ.items() if key != TEST_ID}
