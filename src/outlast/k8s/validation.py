"""What the schema cannot say: fields that do not go together, and settings that Outlast does not have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from msgspec import UNSET

from outlast.k8s.observed import main_container
from outlast.k8s.plan import JobObservation
from outlast.k8s.quantities import bytes_of, seconds_of
from outlast.k8s.rendering import LONGEST_NAME
from outlast.k8s.resource import NPROC, ElasticJobSpec
from outlast.settings.loading import load
from outlast.settings.settings import Settings
from outlast.settings.values import ENV_PREFIX, spelled

# The operator sets these itself, or they name files of one host.
RESERVED = {"token", "node_name", "verdict", "node_unit", "auth", "use_infra_group_rank"}


def problem_of(seen: JobObservation) -> str:
    """Why the job cannot be run as it is, in one sentence that says what to change; empty if it can."""
    if seen.spec is None:
        return seen.problem
    if seen.unknown and not seen.status.slots:
        return f"there is no {', '.join(seen.unknown)}; correct or remove it"
    return next(_problems(seen.job.name, seen.spec), "")


def remark_on(seen: JobObservation, spec: ElasticJobSpec) -> str:
    """What is odd about a job that can be run all the same."""
    if seen.unknown:  # it runs already: perhaps an operator of another version knew them
        return f"ignored, for there is no such field: {', '.join(seen.unknown)}"
    replicas = spec.replica_specs.worker.replicas
    if replicas > spec.most:
        return f"replicas is {replicas}, more than maxReplicas: {spec.most} are used"
    if replicas < spec.least:
        return f"replicas is {replicas}, less than minReplicas: {spec.least} are used"
    return _shared_memory(spec)


def _shared_memory(spec: ElasticJobSpec) -> str:
    """What is wrong with /dev/shm, where snapshots and data loaders need room."""
    pod = spec.replica_specs.worker.template["spec"]
    main = main_container(pod, spec.replica_specs.worker.template.get("metadata") or {})
    if any(each.get("mountPath") == "/dev/shm" for each in main.get("volumeMounts") or ()):
        return ""
    if spec.shared_memory is UNSET:
        return "/dev/shm has 64 MiB: give spec.sharedMemory if the script saves snapshots or has data loaders"
    limit = str(main.get("resources", {}).get("limits", {}).get("memory", ""))
    if limit and bytes_of(spec.shared_memory) >= bytes_of(limit):
        return f"sharedMemory {spec.shared_memory} counts as memory of the pod, which has {limit}: raise limits.memory"
    return ""


def _problems(name: str, spec: ElasticJobSpec) -> Iterator[str]:
    if len(name) > LONGEST_NAME or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield (
            f"metadata.name: {name!r} does not fit into the names of pods; use at most {LONGEST_NAME} lower-case "
            "letters, digits and dashes, a letter first"
        )
    yield from _bounds(spec)
    yield from _template(spec)
    if spec.nproc_per_node is not UNSET and not re.fullmatch(NPROC, str(spec.nproc_per_node)):
        yield f"spec.nprocPerNode: {spec.nproc_per_node!r} is no number, auto, cpu, gpu or xpu"
    for field, duration in (
        ("faultyNodes.excludeFor", spec.faulty_nodes.exclude_for),
        ("drain.gracePeriod", spec.drain.grace_period),
    ):
        if not seconds_of(duration):
            yield f"spec.{field} is {duration}; give a second or more"
    if bytes_of(spec.memory.max) == 0:
        yield "spec.memory.max is 0; give an amount as 64Gi, or set spec.memory.onOOM: Never"
    policy = spec.run_policy.scheduling_policy
    if policy.scheduler == "Kueue" and not policy.queue:
        yield "spec.runPolicy.schedulingPolicy.queue is empty; name the LocalQueue that Kueue takes the pods from"
    yield from _config(spec)


def _bounds(spec: ElasticJobSpec) -> Iterator[str]:
    least, most = spec.least, spec.most
    if least > most:
        yield (
            f"spec.elasticPolicy: minReplicas {least} is more than maxReplicas {most}; "
            f"give minReplicas: {most}, or maxReplicas: {least}"
        )
    unit = spec.elastic_policy.node_unit
    if most // unit * unit < least:
        yield f"spec.elasticPolicy.nodeUnit: no multiple of {unit} lies within {least} to {most}; change one of them"


def _template(spec: ElasticJobSpec) -> Iterator[str]:
    at = "spec.replicaSpecs.worker.template"
    pod = spec.replica_specs.worker.template.get("spec")
    containers = pod.get("containers") if isinstance(pod, dict) else None
    if not isinstance(containers, list) or not containers:
        yield f"{at}.spec.containers is empty; give the container that runs `outlast run …`"
    elif not all(isinstance(each, dict) and each.get("name") and each.get("image") for each in containers):
        yield f"{at}.spec.containers: each container needs a name and an image"


def _config(spec: ElasticJobSpec) -> Iterator[str]:
    if not spec.config:
        return
    known = Settings.__struct_fields__
    for name in spec.config:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists them"
            yield f"spec.config.{name}: Outlast has no such setting; {hint}"
            return
        if name in RESERVED:
            yield f"spec.config.{name} is set by the operator; remove it"
    try:
        load({}, {f"{ENV_PREFIX}{name.upper()}": spelled(value) for name, value in spec.config.items()}, None, {})
    except ValueError as error:
        yield f"spec.config: {error}"
