"""Every fault that `outlast chaos` knows: whom it hits, what it will do, and what answer to wait for."""

from __future__ import annotations

from enum import Enum

import msgspec

from outlast.protocol.chaos import ChaosFault


class ChaosTarget(str, Enum):
    """Whom a fault hits."""

    RANK = "rank"
    NODE = "node"
    COORDINATOR = "coordinator"  # the node that hosts it


class ChaosAnswer(str, Enum):
    """What the job does about a fault, if all goes well."""

    TRAINS_AGAIN = "training again"  # in another generation
    TAKES_OVER = "another coordinator"
    NONE = "nothing has to happen"  # it is only watched for a while


class ChaosKind(msgspec.Struct, frozen=True, kw_only=True):
    """One command."""

    target: ChaosTarget
    does: str  # completes "this will …"
    answer: ChaosAnswer = ChaosAnswer.TRAINS_AGAIN
    choices: tuple[str, ...] = ()  # of --kind, the default first
    value: float | None = None  # the default of --value; None: it has none
    value_means: str = ""
    seconds: float = 0.0  # the default of --seconds; 0: it does not last
    path: bool = False  # needs --path
    needs: str = ""  # rights and programs


KINDS = {
    "kill-worker": ChaosKind(target=ChaosTarget.RANK, does="send SIGKILL to a worker"),
    "kill-agent": ChaosKind(target=ChaosTarget.NODE, does="send SIGKILL to the agent of a node"),
    "kill-coordinator": ChaosKind(
        target=ChaosTarget.COORDINATOR, does="send SIGKILL to the coordinator", answer=ChaosAnswer.TAKES_OVER
    ),
    "preempt": ChaosKind(target=ChaosTarget.NODE, does="send SIGTERM to the agent of a node, as schedulers do"),
    "lose-node": ChaosKind(target=ChaosTarget.NODE, does="kill an agent and all that it has started, at once"),
    "cut-network": ChaosKind(
        target=ChaosTarget.NODE,
        does="drop packets between a node and the others",
        choices=("both", "in", "out"),
        value=1.0,
        value_means="share of packets that are lost",
        seconds=20.0,
        needs="root and iptables on the node",
    ),
    "slow-network": ChaosKind(
        target=ChaosTarget.NODE,
        does="delay packets from a node",
        answer=ChaosAnswer.NONE,
        value=0.1,
        value_means="seconds of delay",
        seconds=20.0,
        needs="root, tc and a kernel with netem on the node",
    ),
    "overload-cpu": ChaosKind(
        target=ChaosTarget.NODE,
        does="keep all CPUs of a node busy",
        answer=ChaosAnswer.NONE,
        value=0.9,
        value_means="share of each CPU",
        seconds=20.0,
    ),
    "hang": ChaosKind(
        target=ChaosTarget.RANK,
        does="make a worker hang",
        choices=("sleep", "lock", "collective", "stopped"),
    ),
    "oom": ChaosKind(
        target=ChaosTarget.RANK, does="let a worker run out of memory at its next step", choices=("host", "gpu")
    ),
    "exit-code": ChaosKind(
        target=ChaosTarget.RANK, does="end a worker at its next step", value=1.0, value_means="exit code"
    ),
    "nan-gradient": ChaosKind(
        target=ChaosTarget.RANK, does="make all gradients of a worker NaN once", answer=ChaosAnswer.NONE, seconds=10.0
    ),
    "fill-disk": ChaosKind(
        target=ChaosTarget.NODE,
        does="take all free space of a disk",
        answer=ChaosAnswer.NONE,
        seconds=20.0,
        path=True,
    ),
    "fill-shm": ChaosKind(
        target=ChaosTarget.NODE,
        does="take all free shared memory of a node",
        answer=ChaosAnswer.NONE,
        seconds=20.0,
    ),
    "corrupt-checkpoint": ChaosKind(
        target=ChaosTarget.NODE,
        does="overwrite 64 bytes in the newest checkpoint below a directory",
        answer=ChaosAnswer.NONE,
        seconds=5.0,
        path=True,
    ),
    "fail-check": ChaosKind(
        target=ChaosTarget.NODE,
        does="let the next check of a node fail, which comes when the node joins or is taken back",
        answer=ChaosAnswer.NONE,
        seconds=5.0,
    ),
    "clock-jump": ChaosKind(
        target=ChaosTarget.NODE,
        does="set the clock of a whole machine wrong",
        answer=ChaosAnswer.NONE,
        value=3600.0,
        value_means="seconds",
        seconds=20.0,
        needs="root on the node; every program there sees it",
    ),
}
SHM = "/dev/shm"


class ChaosRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, as a person or a plan asks for it. `rank` and `node`: None and empty: any."""

    fault: str
    rank: int | None = None
    node: str = ""
    kind: str = ""
    value: float | None = None
    seconds: float | None = None
    path: str = ""

    @property
    def about(self) -> ChaosKind:
        """Which command it is."""
        return KINDS[self.fault]

    def checked(self) -> ChaosRequest:
        """Itself, with defaults. Raises ValueError, in one line."""
        if self.fault not in KINDS:
            raise ValueError(f"there is no fault {self.fault!r}; there are: {', '.join(KINDS)}")
        about = self.about
        if self.kind and self.kind not in about.choices:
            known = ", ".join(about.choices) or "none"
            raise ValueError(f"{self.fault} has no kind {self.kind!r}; there are: {known}")
        if about.path and not self.path:
            raise ValueError(f"{self.fault} needs --path, a directory on the node")
        if self.rank is not None and about.target is not ChaosTarget.RANK:
            raise ValueError(f"{self.fault} hits a node: give --node")
        if self.value is not None and about.value is None:
            raise ValueError(f"{self.fault} takes no --value")
        return msgspec.structs.replace(
            self,
            kind=self.kind or next(iter(about.choices), ""),
            value=about.value if self.value is None else self.value,
            seconds=about.seconds if self.seconds is None else self.seconds,
            path=self.path or (SHM if self.fault == "fill-shm" else ""),
        )

    def order(self, local_rank: int | None) -> ChaosFault:
        """For the node."""
        return ChaosFault(self.fault, local_rank, self.seconds or 0.0, self.value or 0.0, self.path or self.kind)
