"""Every setting once: its default, bounds and help, and from its name the flag, YAML key and variable.

A setting is a field of `Settings`, or of `JobSettings` if it is the same for the whole job and the coordinator decides
by it. Nothing else has to be written: `--ft-node-timeout`, `node_timeout:` and `OUTLAST_NODE_TIMEOUT` follow from
`node_timeout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec

from outlast.settings.setting import Seconds, Setting, expected, off_value
from outlast.settings.setting import about as _about
from outlast.settings.values import (
    memory_bytes,
    ports,
    section_timeouts,
    spelled,
    termination_signal,
    web_address,
)


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that are the job's and not a node's: part of its rules, the same for whoever coordinates it."""

    use_infra_group_rank: Annotated[
        bool,
        _about(
            "Take node ranks from the infrastructure (SLURM_PROCID, then GROUP_RANK) on every generation; "
            "false: survivors keep their ranks and newcomers fill the gaps."
        ),
    ] = True
    node_unit: Annotated[
        int,
        msgspec.Meta(ge=1),
        _about("The world is a multiple of this many nodes.", flags=("--node-unit", "--node_unit")),
    ] = 1
    last_call: Annotated[Seconds, _about("Seconds to wait for more nodes once MIN are there.")] = 3.0
    pend_timeout: Annotated[Seconds, _about("Seconds to wait, below MIN nodes, before the job fails.")] = 600.0
    node_timeout: Annotated[
        float,
        msgspec.Meta(ge=0.1, le=1e9),
        _about(
            "Seconds of silence after which a node counts as lost.",
            flags=("--node-timeout", "--node_timeout"),
        ),
    ] = 3.0
    empty_timeout: Annotated[
        Seconds, _about("Seconds that a coordinator without any node waits for one before it exits.")
    ] = 10.0
    tie_break: Annotated[
        Literal["off", "survivor"],
        _about(
            "'survivor': of two nodes, either may continue alone when it cannot reach the other. "
            "If only the network between them fails, both do."
        ),
    ] = "off"
    restart_grace: Annotated[
        Seconds,
        _about(
            "Seconds between SIGTERM and SIGKILL for workers of a generation that is given up "
            "(job end and drain use --shutdown-timeout)."
        ),
    ] = 0.05
    restart_policy: Annotated[
        Literal["any-failed", "min-healthy"],
        _about(
            "'any-failed': after a failure all nodes go on together, with new processes for those that died. "
            "'min-healthy': while MIN nodes have all their processes, these go on without the others; for scripts "
            "with @outlast.restartable."
        ),
    ] = "any-failed"
    planned_change_timeout: Annotated[
        Seconds,
        _about(
            "Seconds that a planned change (a node joins or drains, `outlast restart`) waits for all ranks to come to "
            "their next save, so that no step is lost; 0: it does not wait.",
            off=0.0,
        ),
    ] = 20.0
    failover: Annotated[
        bool,
        _about(
            "Decide by the cause and history of a failure what to do about it; "
            "false: always restart, until --max-restarts."
        ),
    ] = True
    crash_loop: Annotated[
        int,
        msgspec.Meta(ge=0, le=10**6),
        _about("End the job after the same failure this many times without progress; 0: never.", off=0),
    ] = 10
    exclude_for: Annotated[Seconds, _about("Seconds for which a faulty node is excluded; doubled each time.")] = 1800.0
    eviction_limit: Annotated[
        int, msgspec.Meta(ge=0, le=10**6), _about("Nodes that may be excluded as faulty within an hour.")
    ] = 3
    straggler: Annotated[
        Literal["warn", "exclude", "off"],
        _about(
            "What to do about a rank that is slower than the others while it trains: 'warn', "
            "'exclude' its node as well, or 'off': do not look."
        ),
    ] = "warn"
    straggler_factor: Annotated[
        float,
        msgspec.Meta(ge=1.05, le=1000),
        _about(
            "How many times slower than the median a rank must be, in a section of its own work, to be a straggler."
        ),
    ] = 1.2
    safety_factor: Annotated[
        float,
        msgspec.Meta(ge=1, le=1e6),
        _about("Calibrated timeouts are the longest time that any rank has measured, multiplied by this."),
    ] = 5.0
    allow_chaos: Annotated[
        bool,
        _about("Let `outlast chaos` hurt this job on purpose.", switch=("--allow-chaos", "true")),
    ] = False
    network_check: Annotated[
        bool,
        _about(
            "Check nodes (compute, memory, collectives with a partner) before they take part, and exclude faulty ones.",
            switch=("--network-check", "true"),
        ),
    ] = False
    exclude_straggler: Annotated[
        bool,
        _about(
            "Exclude nodes that a check finds slow, if MIN nodes remain; false: only name them.",
            switch=("--exclude-straggler", "true"),
        ),
    ] = False
    slow_node_factor: Annotated[
        float,
        msgspec.Meta(gt=1, le=1000),
        _about("How many times slower than the median a node must be, in any phase of a check, to be slow."),
    ] = 2.0
    node_check_timeout: Annotated[
        float,
        msgspec.Meta(ge=1, le=86400),
        _about(
            "Seconds that one round of a check may take on a node.",
            flags=("--node-check-timeout", "--node_check_timeout"),
        ),
    ] = 60.0
    comm_perf_test: Annotated[
        bool,
        _about("Measure collectives of several sizes in checks.", switch=("--comm-perf-test", "true")),
    ] = False


class Settings(JobSettings, frozen=True, kw_only=True):
    """What can be set beyond torchrun's flags. One object, read once, passed down."""

    node_name: Annotated[str, _about("Name of this node in logs and for ordering; empty: the host name.")] = ""
    submitted: Annotated[
        float,
        msgspec.Meta(ge=0),
        _about(
            "When the job was submitted, in seconds since 1970: the ledger counts the time until its first node starts "
            "as queued. Set on Slurm and Kubernetes."
        ),
    ] = 0.0
    connect_timeout: Annotated[Seconds, _about("Seconds for which an agent tries to reach the coordinator.")] = 60.0
    journal: Annotated[
        str,
        _about(
            "File for the coordinator's journal, which is kept; without it, one in the temporary directory, "
            "removed when the job has ended."
        ),
    ] = ""
    events: Annotated[
        str,
        _about(
            "File to which the coordinator appends one JSON line for each of its decisions, on its own host; "
            "empty: events.jsonl beside the job's logs, if any."
        ),
    ] = ""
    webhook: Annotated[
        str,
        _about(
            "URL that is sent a notice when the job ends, fails or hangs, a node is excluded or a rank is slow: "
            "JSON, or Slack's format for hooks.slack.com; empty: none.",
            masked=True,
        ),
    ] = ""
    dashboard: Annotated[
        bool,
        _about(
            "Show the job in a browser: serve its page beside this node, as `outlast dashboard` does.",
            switch=("--dashboard", "true"),
        ),
    ] = False
    dashboard_port: Annotated[
        int, msgspec.Meta(ge=0, le=65535), _about("Port of that page, on this machine alone; 0: any that is free.")
    ] = 8380
    progress: Annotated[
        bool,
        _about("On a terminal, keep the last row for a line with generation, step, pace and goodput."),
    ] = True
    snapshot_linger: Annotated[
        Seconds,
        _about(
            "Seconds that snapshots in shared memory outlive an agent that was killed, for the next one of its name."
        ),
    ] = 60.0
    shm_reserve: Annotated[
        int,
        msgspec.Meta(ge=0, le=1 << 50),
        _about(
            "Bytes of shared memory that snapshots leave free, for others who will need it. On Ray: the size of the "
            "node's object store, unless it is set."
        ),
    ] = 0
    replicas: Annotated[
        int,
        msgspec.Meta(ge=0, le=1),
        _about(
            "Copies of each snapshot in the memory of another host, so that it outlives the loss of a node; "
            "0: none, for half of the shared memory.",
            off=0,
        ),
    ] = 1
    warm_start: Annotated[
        bool,
        _about(
            "Fork workers from a process that has already imported what they import.",
            flags=("--warm-start", "--warm_start"),
        ),
    ] = True
    warm_preload: Annotated[
        str,
        _about(
            "More modules to preload, as a,b.c; also your own, whose code is then read only once.",
            flags=("--warm-preload", "--warm_preload"),
        ),
    ] = ""
    warm_cuda: Annotated[
        bool,
        _about(
            "Keep a spare process for each worker that has a CUDA context already; it costs the memory of one.",
            flags=("--warm-cuda", "--warm_cuda"),
        ),
    ] = False
    warm_join: Annotated[
        Seconds,
        _about(
            "Seconds that a node takes at most to import what its workers need (--warm-start) before it joins. For "
            "nodes that join a running job: the others train on meanwhile. 0: join at once.",
            off=0,
        ),
    ] = 0.0
    supervise: Annotated[
        bool,
        _about(
            "Start this node's agent again when it is killed or crashes (`outlast run` alone, not from Python).",
            switch=("--supervise", "true"),
        ),
    ] = False
    hang_detection: Annotated[
        Literal["on", "report", "off"],
        _about(
            "'on': kill a rank that exceeds a timeout that was set or calibrated; without one, report a rank that "
            "seems to hang. 'report': kill nobody. 'off': do not look."
        ),
    ] = "on"
    rank_heartbeat_timeout: Annotated[
        Seconds, _about("Seconds without a heartbeat or step after which a rank hangs; 0: not watched.", off=0.0)
    ] = 0.0
    initial_rank_heartbeat_timeout: Annotated[
        Seconds,
        _about("Seconds from its start in which a rank must give a first sign of life; 0: not watched.", off=0.0),
    ] = 0.0
    rank_section_timeouts: Annotated[
        str,
        _about("Seconds after which a rank hangs in a section, as step:30,checkpoint:600; others are not watched."),
    ] = ""
    rank_out_of_section_timeout: Annotated[
        Seconds, _about("Seconds outside any section after which a rank hangs; 0: not watched.", off=0.0)
    ] = 0.0
    rank_termination_signal: Annotated[
        str,
        _about("Signal that kills a rank that hangs; SIGKILL follows a second later."),
    ] = "SIGKILL"
    in_place_timeout: Annotated[
        Seconds,
        _about(
            "Seconds that a rank may take to leave a function with @outlast.restartable before it is killed and "
            "replaced by a new process; 0: no rank is restarted in place.",
            off=0.0,
        ),
    ] = 3.0
    step_hook: Annotated[
        bool,
        _about("Count the steps of torch's optimizers as heartbeats, for scripts that give none."),
    ] = True
    signatures: Annotated[
        str,
        _about("YAML file with your own signatures of failures, besides the built-in ones."),
    ] = ""
    failover_rules: Annotated[
        str, _about("YAML file with rules about failures, as `- when: {cause: disk-full}`, `then: abortion`.")
    ] = ""
    dynamic_failover_extension: Annotated[
        str,
        _about(
            "package.module::Class, a subclass of outlast.FailoverExtension that decides what to do about failures.",
            flags=("--dynamic-failover-extension", "--dynamic_failover_extension"),
        ),
    ] = ""
    extension_timeout: Annotated[
        float, msgspec.Meta(gt=0, le=3600), _about("Seconds that the extension may take to decide.")
    ] = 5.0
    accelerator: Annotated[
        str,
        _about(
            "What checks test: auto, cpu, cuda, ascend, xpu, or a plug-in's name.",
            flags=("--accelerator",),
        ),
    ] = "auto"
    check_path: Annotated[
        str, _about("Directory whose disk checks test, such as that of the checkpoints; empty: none.")
    ] = ""
    verdict: Annotated[
        str,
        _about("File for the verdict on a failed job, as JSON; empty: verdict.json beside the job's logs, if any."),
    ] = ""
    worker_memory: Annotated[
        str,
        _about(
            "Memory that each worker may use, as 4GiB, by a cgroup of its own; empty: no limit. "
            "A worker that is killed at its limit restarts with twice as much."
        ),
    ] = ""
    max_worker_memory: Annotated[str, _about("How far worker_memory is doubled, as 16GiB; empty: four times.")] = ""
    store_ports: Annotated[str, _about("Ports for the workers' store, as 29600-29700; empty: any free one.")] = ""
    auth: Annotated[
        bool,
        _about("Nodes must prove that they know the job's token.", switch=("--no-auth", "false")),
    ] = True
    token: Annotated[
        str,
        _about("The job's secret, 16 characters or more; only from YAML or OUTLAST_TOKEN.", secret=True),
    ] = ""
    token_file: Annotated[
        str,
        _about(
            "File with the job's secret, which this user alone may read and all nodes see; the first node that finds "
            "none makes it."
        ),
    ] = ""
    tls: Annotated[bool, _about("Encrypt the traffic between agents and coordinator.", switch=("--tls", "true"))] = (
        False
    )
    tls_cert: Annotated[str, _about("Path of the coordinator's certificate (PEM); empty: one is made for the job.")] = (
        ""
    )
    tls_key: Annotated[str, _about("Path of the private key of tls_cert (PEM).")] = ""
    tls_ca: Annotated[
        str, _about("Path of the CA certificates (PEM) to verify the coordinator's certificate with.")
    ] = ""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _about("How much Outlast itself logs.")] = "info"

    def shown(self) -> dict[str, Any]:
        """The settings as they may be printed: of a secret, only whether it is set."""
        values = msgspec.structs.asdict(self)
        return {name: _public(SETTINGS[name], value) for name, value in values.items()}

    # The generated one would carry the token into every log line and traceback that shows the settings.
    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.shown().items())})"


class Reference(NamedTuple):
    """One line of the settings' reference page."""

    name: str
    flag: str
    env: str
    default: str
    help: str


def reference() -> Iterator[Reference]:
    """Every setting as the reference page lists it."""
    for setting in SETTINGS.values():
        flag = ", ".join([*setting.flags[:1], *setting.aliases[:1], *(setting.switch or ())[:1]])
        default = _public(setting, setting.default)
        yield Reference(setting.name, flag, setting.env, spelled(default), setting.help)


def _public(setting: Setting, value: object) -> object:
    if setting.secret:
        return "set" if value else "not set"
    return "set" if setting.masked and value else value


def _settings() -> Iterator[Setting]:
    for field in msgspec.structs.fields(Settings):
        kind, *metas = get_args(field.type)
        about = metas[-1]
        yield Setting(
            name=field.name,
            # The bounds are part of a number's type; text and switches stand alone, to be told apart.
            type=field.type if kind in (int, float) else kind,
            default=field.default,
            help=about.description,
            expects=expected(kind, metas),
            aliases=about.extra["flags"],
            switch=about.extra["switch"],
            off=off_value(kind, about.extra["off"]),
            secret=about.extra["secret"],
            masked=about.extra["masked"],
        )


# What a text has to be beyond a text; each raises ValueError with the rest of the line.
CHECKS: dict[str, Callable[[str], object]] = {
    "store_ports": ports,
    "webhook": web_address,
    "worker_memory": memory_bytes,
    "max_worker_memory": memory_bytes,
    "rank_section_timeouts": section_timeouts,
    "rank_termination_signal": termination_signal,
}
SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _settings()}
