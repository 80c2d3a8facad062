"""Who it was that made a job hang. Pure: what was seen of every rank goes in, a verdict comes out.

When one rank hangs, all the others wait for it, in the next collective. So the question is not who waits longest, but
who does not wait where the others do. In this order:

1. A process that is stopped, in uninterruptible sleep or gone cannot take part, whatever else is seen.
2. Some wait and some do not: it is one of those who do not; if their steps differ, those who are behind.
3. All wait, but not for the same: those who wait for a message of a single rank; else the fewer against the many.
4. All wait for the same, in the same step: it is none of them. The network, or a device.

Whether a rank waits is plain where a function of torch.distributed is innermost. It is not where the call is of C++
alone: `work.wait()`, `store.get()`, a backward pass in which DDP reduces gradients, `.item()` that waits for a GPU.
Those *may* wait; they are taken to, if another rank surely does something else, or if most stand at that line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum

import msgspec

from outlast.diagnosis.observation import Observation
from outlast.diagnosis.stack import Frame, Stack, is_user, library

# Where torch.distributed waits. Its checkpoints, which write files, lie in the same folder and are not among these.
WAITING_FILES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/c10d_logger.py",
    "torch/distributed/rendezvous.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/nn/functional.py",
    "torch/distributed/elastic/utils/store.py",
    "outlast/worker/health.py",
    "outlast/worker/store.py",
)
OPERATOR = ("torch/_ops.py", "__call__")  # a functional collective; the rest of that file makes operators known
INIT = frozenset({"init_process_group", "new_group", "new_subgroups", "split_group", "init_device_mesh"})
BETWEEN_TWO = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"})
NOT_NAMES = frozenset({"wrapper", "inner", "__call__", "<lambda>", "_create_c10d_store", "_env_rendezvous_handler"})
BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")
MAY_WAIT = (".wait(", ".get(", ".synchronize(", ".item(", ".cpu(", ".tolist(", ".result(", ".numpy(")

DATA = ("torch/utils/data/",)
SAVING = ("torch/serialization.py", "torch/distributed/checkpoint/", "safetensors/", "outlast/checkpoint/")
SAVING_SECTIONS = ("checkpoint", "save", "snapshot")
# Functions of the kernel in which a process waits for a file or a pipe, rather than for a lock, a clock or a socket.
FILE_WAITS = ("wait_for_partner", "pipe_", "anon_pipe_", "folio_wait", "io_schedule", "wait_on_page", "locks_lock")
FILE_SYSTEMS = ("nfs", "rpc_wait", "request_wait_answer", "fuse_", "ext4_", "xfs_", "jbd2_", "cifs_", "ceph_", "ll_")

MOVING = 1 / 8  # a rank moves whose last heartbeat is younger than this share of the age of a late one's
MOST_NAMED = 8  # ranks, in a sentence


class HangKind(str, Enum):
    """What sort of hang it is."""

    STOPPED = "stopped"  # SIGSTOP, a debugger
    UNINTERRUPTIBLE = "uninterruptible sleep"  # in the kernel: a disk, a file server, a driver
    GONE = "gone"  # there is no such process any more
    DATA_LOADER = "data loader"
    CHECKPOINT = "checkpoint"
    FILE = "file"  # opening, reading or writing one
    START = "start"  # before the process group is there
    USER_CODE = "user code"
    ALONE = "alone"  # it is this rank, and where it is was not to be seen
    PAIR = "pair"  # ranks that wait for each other's messages
    MISMATCH = "mismatch"  # ranks in different collectives
    EVERYBODY = "everybody"  # all in the same collective: the network, or a device
    UNKNOWN = "unknown"


class HangVerdict(msgspec.Struct, frozen=True):
    """Who it was. No culprits: it was none of the ranks, or it cannot be said; the sentence says which."""

    culprits: tuple[int, ...]
    kind: HangKind
    sentence: str
    where: str = ""  # of the culprits' code, "train.py:81"
    nodes: tuple[str, ...] = ()  # theirs

    @property
    def certain(self) -> bool:
        """Whether it is known who it was, if it was a rank: enough to end one that no clock of its own has found."""
        return self.kind is not HangKind.UNKNOWN


class _Wait(msgspec.Struct, frozen=True):
    """What a rank waits in: a function of torch's, or a line; and where the user called it."""

    what: str
    where: str
    sure: bool

    def __str__(self) -> str:
        return self.what or f"at {self.where}"


class _Rank:
    """A rank as it was observed, and what that means taken by itself."""

    def __init__(self, observed: Observation) -> None:
        self.rank, self.node, self.step, self.late = observed.rank, observed.node, observed.step, observed.late
        self.beat_age = observed.beat_age
        self.stack = observed.stack or Stack()
        self.sections = observed.sections
        self.abnormal = self._by_state()
        self.unseen = observed.stack is None or not (self.stack.frames or self.abnormal)
        self.wait = None if self.unseen or self.abnormal else waiting(self.stack)

    def each_of(self, ranks: Iterable[int]) -> Iterator[_Rank]:
        """The same for each of these ranks. What it means is found out once: there may be thousands."""
        for rank in ranks:
            other = _Rank.__new__(_Rank)
            other.__dict__.update(self.__dict__, rank=rank)
            yield other

    def _by_state(self) -> HangKind | None:
        """The kind of hang that its state alone makes it."""
        if self.stack == Stack():
            return None  # nobody looked
        by_state = {"T": HangKind.STOPPED, "t": HangKind.STOPPED, "D": HangKind.UNINTERRUPTIBLE}
        return by_state.get(self.stack.state, HangKind.GONE if self.stack.state in ("", "Z", "X") else None)

    @property
    def surely_waits(self) -> bool:
        return self.wait is not None and self.wait.sure

    @property
    def why_unseen(self) -> str:
        return self.stack.trouble or "its node gave no stacks in time"

    @property
    def user(self) -> Frame | None:
        """The innermost frame of the user's own code."""
        return next(filter(is_user, self.stack.frames), None)

    def where(self) -> str:
        """The line to look at."""
        caller = self._caller(DATA) or self.user
        return place(caller) if caller else ""

    def kind(self, starting: bool) -> HangKind:
        """What sort of hang it is, if it is this rank that hangs."""
        if self.abnormal:
            return self.abnormal
        if self.unseen:
            return HangKind.ALONE
        if self._caller(DATA):
            return HangKind.DATA_LOADER
        if self._caller(SAVING) or any(word in self._section.lower() for word in SAVING_SECTIONS):
            return HangKind.CHECKPOINT
        if self.stack.wchan.startswith(FILE_WAITS + FILE_SYSTEMS):
            return HangKind.FILE
        if starting:
            return HangKind.START
        return HangKind.USER_CODE if self.user else HangKind.ALONE

    def stuck(self, kind: HangKind) -> str:
        """What it does, as a part of a sentence."""
        match kind:
            case HangKind.STOPPED:
                return f"its process is stopped (by SIGSTOP or a debugger){self._at}"
            case HangKind.UNINTERRUPTIBLE:
                return f"its process is in uninterruptible sleep in the kernel ({self.stack.wchan or '?'}){self._at}"
            case HangKind.GONE:
                return "its process has ended"
            case HangKind.DATA_LOADER:
                return f"stuck in DataLoader.__next__ at {self.where()}{self._within}{self._held}"
            case HangKind.CHECKPOINT:
                return f"stuck in a checkpoint{self._at}"
            case HangKind.FILE:
                return f"stuck on a file or pipe{self._at}"
            case HangKind.START:
                return f"it does not come to init_process_group, stuck{self._at}"
            case HangKind.PAIR | HangKind.MISMATCH if self.wait is not None:
                step = f" of step {self.step}" if self.step is not None else ""
                return f"waits in {self.wait.what or 'a call'} at {self.wait.where or '?'}{step}"
            case _ if self.unseen:
                return f"nothing could be seen ({self.why_unseen})"
        return f"stuck{self._at or ' in code that is not Python'}{self._manner}{self._held}"

    @property
    def _at(self) -> str:
        if self.user is not None:
            return f" in {self.user.function} at {place(self.user)}"
        return f" in {self.stack.frames[0].function} at {place(self.stack.frames[0])}" if self.stack.frames else ""

    @property
    def _within(self) -> str:
        """Where the user's own dataset is, if that runs in the rank itself."""
        inner = self.user
        return "" if inner is None or inner is self._caller(DATA) else f", in {inner.function} at {place(inner)}"

    @property
    def _held(self) -> str:
        """A child that is stopped or dead."""
        states = {"T": "stopped", "t": "stopped", "Z": "dead", "D": "in uninterruptible sleep"}
        held = [child for child in self.stack.children if child.state in states]
        return f" (its child {held[0].name}, pid {held[0].pid}, is {states[held[0].state]})" if held else ""

    @property
    def _manner(self) -> str:
        if self.stack.state == "R":
            return ", computing"
        if self.stack.wchan.startswith("futex"):
            return ", waiting for a lock or another thread"
        return ", sleeping" if "nanosleep" in self.stack.wchan else ""

    @property
    def _section(self) -> str:
        return self.sections[-1][0] if self.sections else ""

    def _caller(self, files: tuple[str, ...]) -> Frame | None:
        """The user's frame that called into these files of a library; None: the stack does not go through them."""
        inside = False
        for frame in self.stack.frames:
            if library(frame.file).startswith(files):
                inside = True
            elif inside and is_user(frame):
                return frame
        return None


def name(ranks: Sequence[Observation]) -> HangVerdict:
    """Who makes the job hang, by what was seen of all its ranks.

    >>> name([Observation(rank=0, node="a", stack=Stack(state="T")), Observation(rank=1, node="b")]).sentence
    'rank 0 on a hangs: its process is stopped (by SIGSTOP or a debugger)'
    """
    seen = sorted((rank for each in ranks for rank in _Rank(each).each_of(each.ranks)), key=lambda each: each.rank)
    out = [each for each in seen if each.abnormal]
    busy = [each for each in seen if not each.abnormal and not each.wait and not each.unseen]
    unseen = [each for each in seen if each.unseen]
    waits = [each for each in seen if each.wait]
    if out:
        return _blame(out, waits)
    if not waits:
        return _nobody_waits(busy, unseen)
    if busy:
        return _blame(_behind(busy), waits)
    if unseen:
        return _blame(unseen, waits)
    return _all_wait(waits)


def waiting(stack: Stack) -> _Wait | None:
    """What this process waits in for other ranks, or may; None: it does something else."""
    user = next(filter(is_user, stack.frames), None)
    where = place(user) if user else ""
    own = [frame for frame in stack.frames if library(frame.file) != "-"]
    block = _leading(own, _waits_within)
    if block:
        named = [frame.function for frame in block if frame.function not in NOT_NAMES]
        return _Wait(named[-1] if named else block[-1].function, where, sure=True)
    if not own:
        return None
    if (library(own[0].file), own[0].function) == BACKWARD and stack.state != "R":
        return _Wait("backward", where, sure=False)
    # Whether it sleeps does not matter here: waiting for a GPU may be a loop.
    if own[0] is stack.frames[0] and is_user(own[0]) and any(call in own[0].source for call in MAY_WAIT):
        return _Wait("", where, sure=False)
    return None


def _waits_within(frame: Frame) -> bool:
    file = library(frame.file)
    return file in WAITING_FILES or (file, frame.function) == OPERATOR


def place(frame: Frame) -> str:
    """A line as a person reads it: `train.py:81`."""
    parts = frame.file.split("/")
    short = parts[-2:] if parts[-1] in ("__init__.py", "__main__.py") else parts[-1:]
    return f"{'/'.join(short)}:{frame.line}"


def _all_wait(waits: Sequence[_Rank]) -> HangVerdict:
    pair = [each for each in waits if each.wait and each.wait.what in BETWEEN_TWO]
    if pair:
        return _blame(_behind(pair), _but(waits, pair), kind=HangKind.PAIR)
    groups = _grouped(waits, lambda each: each.wait)
    if len(groups) == 1:
        groups = _grouped(waits, lambda each: each.step)
    if len(groups) == 1:
        many = f"all {len(waits)} ranks are" if len(waits) > 1 else f"{_who(waits)} is"
        step = f" of step {waits[0].step}" if waits[0].step is not None else ""
        sentence = f"{many} in the same call{step}, {_waits(waits)}: no rank is missing; check the network or a device"
        return HangVerdict((), HangKind.EVERYBODY, sentence, waits[0].wait.where if waits[0].wait else "")
    # What is surely a wait for others tells more than what may be one, and the many more than the few.
    first, second, *_ = sorted(groups, key=_weight, reverse=True)
    if _weight(first) == _weight(second):
        apart = "; ".join(f"{_who(group)} wait {_in(group[0])}" for group in groups[:MOST_NAMED])
        return HangVerdict((), HangKind.MISMATCH, f"ranks wait in different places, none of them alone: {apart}")
    others = _but(waits, first)
    # A rank that surely waits is in the wrong collective; of one that only may, it is better to say where it is.
    kind = HangKind.MISMATCH if all(each.surely_waits == first[0].surely_waits for each in others) else None
    return _blame(others, first, kind=kind)


def _nobody_waits(busy: Sequence[_Rank], unseen: Sequence[_Rank]) -> HangVerdict:
    if not busy:
        return HangVerdict((), HangKind.UNKNOWN, f"nothing was seen of {_who(unseen)}: {unseen[0].why_unseen}")
    busy = _still(busy)
    groups = _grouped(busy, _Rank.where)
    if len(groups) > 1 and len(groups[0]) > len(busy) / 2:
        return _blame(_but(busy, groups[0]), groups[0])
    behind = _behind(busy)
    late = [each for each in busy if each.late]
    if len(behind) == len(busy) > len(late) > 0:
        return _blame(late, ())
    if len(behind) < len(busy) or len(groups) == 1:
        return _blame(behind, ())
    return _blame(busy, (), kind=HangKind.UNKNOWN)


def _blame(culprits: Sequence[_Rank], waits: Sequence[_Rank], *, kind: HangKind | None = None) -> HangVerdict:
    starting = bool(waits) and all(each.wait and each.wait.what in INIT for each in waits)
    shown = culprits[:MOST_NAMED]
    kinds = [kind or each.kind(starting) for each in shown]
    stuck = [each.stuck(each_kind) for each, each_kind in zip(shown, kinds, strict=True)]
    if waits:
        are = "blocks the others" if len(culprits) == 1 else "block the others"
    else:
        are = "hangs" if len(culprits) == 1 else "hang"
    if len(set(stuck)) == 1:
        told = stuck[0]
    else:
        told = ", ".join(f"rank {each.rank} {text}" for each, text in zip(shown, stuck, strict=True))
    sentence = f"{_who(culprits)} {are}: {told}"
    if waits:
        sentence += f"; {_waits(waits)}"
    where = next((each.where() for each in culprits if each.where()), "")
    nodes = tuple(dict.fromkeys(each.node for each in culprits))
    return HangVerdict(tuple(each.rank for each in culprits), kinds[0], sentence, where, nodes)


def _still(ranks: Sequence[_Rank]) -> Sequence[_Rank]:
    """Those that do not move, going by heartbeats; all, where heartbeats do not tell."""
    longest = max((each.beat_age for each in ranks if each.late and each.beat_age is not None), default=0.0)
    return [each for each in ranks if each.beat_age is None or each.beat_age > longest * MOVING] or ranks


def _behind(ranks: Sequence[_Rank]) -> Sequence[_Rank]:
    """Those of the fewest steps; all, where a step is not known."""
    steps = [each.step for each in ranks if each.step is not None]
    if len(steps) < len(ranks):
        return ranks
    return [each for each in ranks if each.step == min(steps)]


def _grouped(ranks: Sequence[_Rank], key: Callable[[_Rank], object]) -> list[list[_Rank]]:
    """Ranks that are alike, the largest group first."""
    groups: dict[object, list[_Rank]] = {}
    for each in ranks:
        groups.setdefault(key(each), []).append(each)
    return sorted(groups.values(), key=len, reverse=True)


def _but(ranks: Sequence[_Rank], some: Sequence[_Rank]) -> list[_Rank]:
    """All but those."""
    left_out = set(map(id, some))
    return [each for each in ranks if id(each) not in left_out]


def _weight(group: Sequence[_Rank]) -> tuple[bool, int]:
    return group[0].surely_waits, len(group)


def _leading(frames: Iterable[Frame], belongs: Callable[[Frame], bool]) -> list[Frame]:
    found = []
    for frame in frames:
        if not belongs(frame):
            break
        found.append(frame)
    return found


def _who(ranks: Sequence[_Rank]) -> str:
    """`rank 3 on node-2`, `ranks 1, 2 on node-1 and 5 on node-2`."""
    by_node: dict[str, list[str]] = {}
    for each in ranks[:MOST_NAMED]:
        by_node.setdefault(each.node, []).append(str(each.rank))
    named = " and ".join(f"{', '.join(numbers)} on {node}" for node, numbers in by_node.items())
    more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{more}"


def _waits(ranks: Sequence[_Rank]) -> str:
    """`7 ranks wait in all_reduce`."""
    counted = Counter(map(_in, ranks)).most_common(3)
    first, *rest = [(f"{count} rank{'s' if count > 1 else ''}", text, count) for text, count in counted]
    verb = "waits" if first[2] == 1 else "wait"
    return ", ".join([f"{first[0]} {verb} {first[1]}", *(f"{count} {text}" for count, text, _ in rest)])


def _in(rank: _Rank) -> str:
    if rank.wait is not None and rank.wait.what:
        return f"in {rank.wait.what}"
    innermost = rank.stack.frames[0] if rank.stack.frames else None
    return f"at {rank.where() or (place(innermost) if innermost else 'an unknown place')}"
