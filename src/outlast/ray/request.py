"""What Ray is asked for, as plain data: printable, and made without Ray."""

from __future__ import annotations

import shlex
from collections.abc import Collection

import msgspec
import yaml

from outlast.jobs.command import run_arguments
from outlast.jobs.spec import JobSpec

NODE_LABEL = "ray.io/node-id"
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
NAMESPACE = "outlast"


class RayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One placement group of one bundle, and one actor in it, for each node."""

    job: str
    least: int
    most: int  # nodes that train
    spares: int
    bundle: dict[str, float]  # resources of a node
    labels: dict[str, str]  # label selector of its node
    share_nodes: bool  # whether two agents may be on one Ray node
    directory: str  # empty: as Ray has it for the actor
    env: dict[str, str]
    arguments: tuple[str, ...]  # of `outlast`, on each node
    script: int  # where in them the script begins
    address: str = ""
    detached: bool = False

    def selector(self, avoid: Collection[str] = ()) -> dict[str, str]:
        """The label selector of a bundle that is not to be on these Ray nodes."""
        return {**self.labels, **({NODE_LABEL: f"!in({','.join(sorted(avoid))})"} if avoid else {})}

    def actor_resources(self) -> dict[str, object]:
        """The options of an actor that uses all of its bundle: so Ray shows its process the GPUs."""
        names = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        options: dict[str, object] = {"num_cpus": 0}
        options |= {names[name]: amount for name, amount in self.bundle.items() if name in names}
        own = {name: amount for name, amount in self.bundle.items() if name not in names}
        return {**options, **({"resources": own} if own else {})}

    def command(self, *meeting: str) -> tuple[str, ...]:
        """The command line of one agent, with what only it knows."""
        return (*self.arguments[: self.script], *meeting, *self.arguments[self.script :])

    def text(self) -> str:
        """Exactly what Ray is asked for; in angle brackets what is known only then."""
        group = {"bundles": [self.bundle], "bundle_label_selector": [self.selector()], "strategy": "PACK"}
        actor = {**self.actor_resources(), "max_restarts": 0, "max_task_retries": 0}
        lifetime = {"lifetime": "detached"} if self.detached else {}
        meeting = meeting_flags(self.job, ["<address of a node>:<port>"], "<address>", "<host>.<number>", host=False)
        asked = {
            "address": self.address or "auto",
            "namespace": NAMESPACE,
            "for each node": {
                "count": self.most + self.spares,
                "placement_group": {**group, **lifetime},
                "actor": {"class": "outlast.ray.agent_actor.AgentActor", **actor, **lifetime},
                "process": {
                    "directory": self.directory or "<as Ray has it>",
                    "env": {**self.env, "OUTLAST_TOKEN": "<made for this job>"},
                    "command": shlex.join(("outlast", *self.command(*meeting))),
                },
            },
        }
        return str(yaml.safe_dump(asked, sort_keys=False, width=1000)).rstrip()


def meeting_flags(job: str, places: Collection[str], address: str, name: str, *, host: bool) -> tuple[str, ...]:
    """The flags that say where the agents of a job meet, and who this one is."""
    return (
        "--rdzv-backend=c10d",
        f"--rdzv-id={job}",
        f"--rdzv-endpoint={','.join(places)}",
        f"--rdzv-conf=is_host={int(host)}",
        f"--local-addr={address}",
        f"--ft-node-name={name}",
    )


def plan_request(spec: JobSpec, *, detached: bool = False) -> RayRequest:
    """What to ask Ray for. Raises ValueError for a job that it cannot run.

    >>> plan_request(JobSpec(name="j", run="train.py", nodes="2:4", spares=1)).bundle
    {'CPU': 1.0}
    """
    arguments = tuple(run_arguments(spec))
    return RayRequest(
        job=spec.name,
        least=spec.least_nodes,
        most=spec.training_nodes,
        spares=spec.spares,
        bundle=bundle_of(spec),
        labels=dict(spec.ray.labels),
        share_nodes=spec.ray.share_nodes,
        directory=spec.directory,
        env=dict(spec.env),
        arguments=arguments,
        script=len(arguments) - len(spec.args) - 1,
        address=spec.ray.address,
        detached=detached,
    )


def bundle_of(spec: JobSpec) -> dict[str, float]:
    """The resources of one node, as Ray names them. An actor of no resources at all could be anywhere."""
    need = spec.resources
    named = {"CPU": float(need.cpus), "GPU": float(need.gpus), "memory": float(bytes_of(need.memory))}
    own = {name: amount for name, amount in spec.ray.resources.items() if amount}
    if twice := sorted(set(own) & {name for name, amount in named.items() if amount}):
        raise ValueError(f"{', '.join(twice)}: given twice; leave it out of ray.resources")
    return {name: amount for name, amount in {**named, **own}.items() if amount} or {"CPU": 1.0}


def bytes_of(amount: str) -> int:
    """The bytes of an amount of memory.

    >>> bytes_of("2GiB"), bytes_of("")
    (2147483648, 0)
    """
    return int(amount[:-3]) * UNITS[amount[-3:]] if amount else 0
