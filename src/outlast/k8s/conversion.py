"""ElasticJobs from what others call theirs: DLRover's ElasticJob and Kubeflow's PyTorchJob."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from outlast.k8s.resource import API_VERSION, KIND

Manifest = dict[str, Any]

PYTORCH_CLEAN = {"Running": "Running", "All": "All", "None": "None"}
LAUNCHERS = re.compile(r"\b(dlrover-run|torchrun|python3? -m torch\.distributed\.(?:run|launch))\b")
NAMES = r"--(?:nnodes|node[-_]rank|master[-_]addr|master[-_]port|rdzv[-_]\w+)"
OPERATORS_FLAG = re.compile(NAMES + r"(=.*)?")
FLAGS_IN_A_LINE = re.compile(r"\s+" + NAMES + r"""(?:=|\s+)(?:"[^"]*"|'[^']*'|\S+)""")


class Conversion(msgspec.Struct):
    """An ElasticJob, and what its owner should know about the change."""

    job: Manifest
    notes: list[str]


def convert(given: Manifest) -> Conversion:
    """What a manifest becomes. Raises ValueError for what is not known, in one line."""
    kind, api = given.get("kind"), str(given.get("apiVersion", "")).partition("/")[0]
    convert_by: Mapping[tuple[object, str], Callable[[Manifest, list[str]], Manifest]] = {
        ("ElasticJob", "elastic.iml.github.io"): _from_dlrover,
        ("PyTorchJob", "kubeflow.org"): _from_pytorch_job,
    }
    if (kind, api) not in convert_by:
        raise ValueError(
            f"{kind} of {api or 'no API group'} cannot be converted; "
            "there are: ElasticJob of elastic.iml.github.io, PyTorchJob of kubeflow.org"
        )
    notes: list[str] = []
    spec = convert_by[kind, api](copy.deepcopy(given.get("spec") or {}), notes)
    kept = ("name", "namespace", "labels", "annotations")
    meta = {key: value for key, value in given.get("metadata", {}).items() if key in kept}
    return Conversion({"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec}, notes)


def _from_dlrover(given: Manifest, notes: list[str]) -> Manifest:
    roles = given.get("replicaSpecs") or {}
    for role in roles:
        if role not in ("worker", "dlrover-master"):
            raise ValueError(f"replicaSpecs.{role}: only workers can be run; this is a job of parameter servers")
    if "worker" not in roles:
        raise ValueError("replicaSpecs.worker is missing; nothing would be run")
    if "dlrover-master" in roles:
        notes.append("replicaSpecs.dlrover-master is dropped: no master pod is needed")
    worker = roles["worker"]
    low = _least_in(worker)
    spec: Manifest = {"replicaSpecs": {"worker": _worker(worker, notes)}}
    if low is not None:
        replicas = worker.get("replicas", 1)
        spec["elasticPolicy"] = {"minReplicas": low, "maxReplicas": max(replicas, low)}
        notes.append(f"elasticPolicy {low} to {replicas} is taken from --nnodes")
    if given.get("suspend"):
        spec["suspend"] = True
    dropped = sorted(set(given) - {"replicaSpecs", "suspend", "distributionStrategy"})
    notes.extend(f"spec.{name} is dropped: it has no counterpart" for name in dropped)
    return spec


def _from_pytorch_job(given: Manifest, notes: list[str]) -> Manifest:
    roles = given.get("pytorchReplicaSpecs") or {}
    master, worker = roles.get("Master"), roles.get("Worker")
    first = worker or master
    if first is None:
        raise ValueError("pytorchReplicaSpecs has neither Master nor Worker; nothing would be run")
    if master is not None and worker is not None:
        notes.append("Master and Worker are one kind of pod now, with the Worker's template; any of them may be rank 0")
        first = {**worker, "replicas": worker.get("replicas", 1) + master.get("replicas", 1)}
    spec: Manifest = {"replicaSpecs": {"worker": _worker(first, notes)}}
    elastic = given.get("elasticPolicy") or {}
    kept = {key: elastic[key] for key in ("minReplicas", "maxReplicas", "maxRestarts") if key in elastic}
    if kept:
        spec["elasticPolicy"] = kept
    if "nprocPerNode" in given:
        spec["nprocPerNode"] = given["nprocPerNode"]
    spec |= _run_policy(given.get("runPolicy") or {}, notes)
    dropped = sorted(set(elastic) - set(kept))
    notes.extend(f"elasticPolicy.{name} is dropped: pods meet at the job's own coordinator" for name in dropped)
    return spec


def _run_policy(given: Manifest, notes: list[str]) -> Manifest:
    found: Manifest = {}
    kept: Manifest = {key: given[key] for key in ("ttlSecondsAfterFinished", "activeDeadlineSeconds") if key in given}
    if given.get("cleanPodPolicy") in PYTORCH_CLEAN:
        kept["cleanPodPolicy"] = given["cleanPodPolicy"]
    if kept:
        found["runPolicy"] = kept
    if given.get("suspend"):
        found["suspend"] = True
    known = {"ttlSecondsAfterFinished", "activeDeadlineSeconds", "cleanPodPolicy", "suspend"}
    notes.extend(f"runPolicy.{name} is dropped: it has no counterpart" for name in sorted(set(given) - known))
    return found


def _worker(given: Manifest, notes: list[str]) -> Manifest:
    template = given.get("template") or {}
    found: Manifest = {"replicas": given.get("replicas", 1)}
    if "restartCount" in given:
        found["restartCount"] = given["restartCount"]
    for container in (template.get("spec") or {}).get("containers") or ():
        for key in ("command", "args"):
            if container.get(key):
                container[key] = _commands(container[key], notes)
    return found | {"template": template}


def _commands(words: list[str], notes: list[str]) -> list[str]:
    """A command whose launcher is `outlast run`. Where nodes meet, and how many, comes by the environment."""
    found: list[str] = []
    rest = iter(_without_module(words))
    for word in rest:
        if OPERATORS_FLAG.fullmatch(word):
            if "=" not in word:
                next(rest, None)
        elif word in ("dlrover-run", "torchrun"):
            found += ["outlast", "run"]
        else:
            found.append(FLAGS_IN_A_LINE.sub("", LAUNCHERS.sub("outlast run", word)))
    if found != words:
        notes.append("the launcher is `outlast run`; --nnodes and --rdzv-… come by the environment")
    return found


def _without_module(words: list[str]) -> list[str]:
    """`python -m torch.distributed.run …` as `torchrun …`."""
    module = words[1:3]
    if module in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
        return ["torchrun", *words[3:]]
    return words


def _least_in(worker: Manifest) -> int | None:
    """MIN of `--nnodes=MIN:MAX` in the commands."""
    containers = ((worker.get("template") or {}).get("spec") or {}).get("containers") or ()
    text = " ".join(str(word) for each in containers for key in ("command", "args") for word in each.get(key) or ())
    found = re.search(r"--nnodes[=\s]+[\"']?(\d+):", text)
    return int(found[1]) if found else None
