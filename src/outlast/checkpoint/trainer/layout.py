"""Where everything lies in a shard, made once; after that a save is one loop of copies to fixed places.

A shard is a file of torch.distributed.checkpoint: for each tensor what `torch.save` writes, one after the other. That
is a zip archive whose only large record is the tensor's bytes, at an offset that depends on dtype and shape alone. So
the archive is made once per dtype and shape, without the bytes (`Template`), laid out in the slot, and from then on
only the bytes are copied. Objects that are no tensors are pickled streams, which may be followed by anything, in
regions with some room to grow.
"""

from __future__ import annotations

import copyreg
import hashlib
import io
import pickle
import re
import secrets
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.utils import _DistWrapper, find_state_dict_object
from torch.distributed.tensor import DTensor

from outlast.checkpoint.memory.slot import PAGE, Slot
from outlast.checkpoint.storage.format import run_prefix, shard_name

VERSION = getattr(filesystem, "CURRENT_DCP_VERSION", "")  # of DCP's metadata, which has none before torch 2.9
ALIGN = 64
LARGE = 64 * 1024  # bytes from which on a write is not looked at
_OBJECT_ROOM = 64  # bytes beside twice its size
_BLANK = struct.Struct("<q")
_CLASS = re.compile(rb"c(\S+\n\S+)\n")  # as a pickle of torch's names one
_PARTS = re.compile(rb"torch\.distributed\..*\n(DTensor|ShardedTensor)")  # what has another part on each rank
_loaded: set[bytes] = set()  # classes that were seen to be loaded again

Flat = Mapping[str, Any]
Paths = Mapping[str, tuple[str | int, ...]]
Pair = tuple[torch.Tensor, torch.Tensor]  # where a tensor is copied to, and what from


class Unsavable(ValueError):
    """Something in the state cannot be saved. The message names it."""


@dataclass(frozen=True)
class Template:
    """What `torch.save` writes around a tensor's bytes."""

    before: bytes
    nbytes: int
    after: bytes

    @property
    def length(self) -> int:
        return len(self.before) + self.nbytes + len(self.after)


@lru_cache(maxsize=65536)
def template(dtype: torch.dtype, shape: torch.Size) -> Template:
    """The template of all tensors of this dtype and shape.

    >>> len(template(torch.float32, torch.Size([3, 4])).before) % 64
    0
    """
    tensor = torch.empty(shape, dtype=dtype)
    sink = _Sink(tensor.nbytes)
    checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)  # nobody checks them, and the bytes are not there yet
    try:
        torch.save(tensor, sink)
    finally:
        torch.serialization.set_crc32_options(checksums)
    return sink.template()


class _Sink:
    """Takes what `torch.save` writes, and forgets the tensor's bytes."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._text = bytearray()
        self._hole: int | None = None

    def write(self, data: memoryview) -> int:
        if self._hole is None and len(data) == self._nbytes >= LARGE:
            self._hole = len(self._text)
        else:
            self._text += data
        return len(data)

    def flush(self) -> None:
        pass

    def template(self) -> Template:
        name = self._text.index(b"/data/0")  # in the header of the record; the archive's directory comes later
        header = self._text.rindex(b"PK\x03\x04", 0, name)
        lengths: tuple[int, int] = struct.unpack_from("<HH", self._text, header + 26)
        at = header + 30 + sum(lengths)
        assert self._hole in (None, at)
        assert at % ALIGN == 0
        after = at if self._hole is not None else at + self._nbytes
        return Template(bytes(self._text[:at]), self._nbytes, bytes(self._text[after:]))


@dataclass(frozen=True)
class ShardPlan:
    """Who saves what, agreed by all ranks. It holds until keys, shapes or dtypes change."""

    run: str
    origin: str
    rank: int
    world: int
    items: tuple[WriteItem, ...]
    signature: tuple[Any, ...]
    contents: bytes  # of rank 0: DCP's metadata, with blanks
    blanks: bytes

    def holds(self, flat: Flat) -> bool:
        # One by one: as many tuples at once would call the garbage collector, which takes longer than all the copies.
        return len(flat) == len(self.signature) and all(
            key == known[0] and _kind(value) == known[1:]
            for (key, value), known in zip(flat.items(), self.signature, strict=True)
        )

    def change(self, flat: Flat) -> str:
        """Why it does not hold, in a few words."""
        known = {key: kind for key, *kind in self.signature}
        for key, value in flat.items():
            if key not in known:
                return f"{key} is new in the state"
            if list(_kind(value)) != known[key]:
                return f"{key} has changed its shape or dtype"
        gone = next((key for key in known if key not in flat), None)
        return f"{gone} is no longer in the state" if gone is not None else "the order of the state has changed"

    def values(self, flat: Flat) -> list[Any]:
        """What this rank saves, in the order of its items."""
        return [_local(flat, item) for item in self.items]


def signature(flat: Flat) -> tuple[Any, ...]:
    """What a plan depends on."""
    return tuple((key, *_kind(value)) for key, value in flat.items())


def _kind(value: Any) -> tuple[Any, ...]:
    tensor, distributed = _is_tensor(value.__class__)
    if distributed:
        return value.shape, value.dtype, value.placements, tuple(value.device_mesh.shape), value._local_tensor.shape
    return (value.shape, value.dtype) if tensor else ()


@lru_cache(maxsize=1024)
def _is_tensor(kind: type) -> tuple[bool, bool]:
    """Whether it is a tensor, and a distributed one. Asked thousands of times per save, and isinstance is slow here."""
    return issubclass(kind, torch.Tensor), issubclass(kind, DTensor)


def make_plan(
    flat: Flat, paths: Paths, origin: str = "", group: dist.ProcessGroup | None = None, *, job: str = ""
) -> ShardPlan:
    """Have all ranks agree who saves what. Collective: to be called by all ranks of the group.

    `origin`, of rank 0, is told to all. `job`: whose generations these are.

    Raises `Unsavable`.
    """
    for key, value in flat.items():
        if not isinstance(value, torch.Tensor):
            continue
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            raise Unsavable(f"{key} is a sparse, quantized or nested tensor, which DCP does not save: make it plain")
        if value.is_meta:
            raise Unsavable(f"{key} is on the meta device and has no values: give it some, or leave it out")
    distributed = dist.is_available() and dist.is_initialized()
    wrapper = _DistWrapper(group, distributed, 0)
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)

    def local() -> SavePlan:
        planner.set_up_planner(dict(flat), None, wrapper.is_coordinator)
        return replace(planner.create_local_plan(), planner_data=dict(paths))

    def together(plans: list[SavePlan]) -> list[tuple[str, str, SavePlan, bytes, bytes]]:
        run = f"{run_prefix(job)}{secrets.token_hex(8)}"
        agreed, metadata = planner.create_global_plan(plans)
        mappings = {key: path for plan in reversed(plans) for key, path in plan.planner_data.items()}
        contents, blanks = _contents(agreed, replace(metadata, planner_data=mappings))
        told = [(run, origin, plan, b"", b"") for plan in agreed]
        told[0] = run, origin, agreed[0], contents, blanks
        return told

    run, origin, plan, contents, blanks = wrapper.reduce_scatter("plan", local, together)
    return ShardPlan(
        run, origin, wrapper.rank, wrapper.get_world_size(), tuple(plan.items), signature(flat), contents, blanks
    )


def _contents(plans: Sequence[SavePlan], metadata: Metadata) -> tuple[bytes, bytes]:
    """DCP's metadata as it will be on disk, and where in it the offset and length of each item are to be filled in.

    A number above 2⁶² is pickled as eight bytes of its own: those can be replaced by any other number, so that nobody
    has to unpickle it, or to have torch, who fills it in.
    """
    tag = secrets.randbits(30) << 32 | 1 << 62
    blanks = iter(range(tag, tag + 2**32))
    storage = {
        item.index: _StorageInfo(shard_name(rank), next(blanks), next(blanks))
        for rank, plan in enumerate(plans)
        for item in plan.items
    }
    count = next(blanks) - tag
    metadata.storage_data = storage
    metadata.storage_meta = StorageMeta()
    if VERSION:
        metadata.version = VERSION
    text = _dumps(metadata)
    positions, at = [], -1
    for number in range(count):
        at = text.index(b"\x8a\x08" + _BLANK.pack(tag + number), at + 1)
        positions.append(_BLANK.pack(at + 2))
    return text, b"".join(positions)


def _dumps(metadata: Metadata) -> bytes:
    """The same bytes on every Python: 3.11.0 to 3.11.3 pickle an Enum through `getattr`, others by its value."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=2)
    pickler.dispatch_table = {
        **copyreg.dispatch_table,
        _MEM_FORMAT_ENCODING: lambda member: (_MEM_FORMAT_ENCODING, (member.value,)),
    }
    pickler.dump(metadata)
    return stream.getvalue()


def _local(flat: Flat, item: WriteItem) -> Any:
    value = flat[item.index.fqn]
    tensor, distributed = _is_tensor(value.__class__)
    if distributed:
        return value._local_tensor
    if tensor or item.type is WriteItemType.BYTE_IO:
        return value
    return find_state_dict_object(flat, item.index)  # a ShardedTensor: one of its shards


def pickled(value: Any, key: str) -> bytes:
    """An object as it lies in a shard. One that `restore` would refuse is refused now, when nothing is lost yet."""
    stream = io.BytesIO()
    try:
        torch.save(value, stream, _use_new_zipfile_serialization=False)
    except Exception as error:  # whatever an object's own pickling raises
        raise Unsavable(
            f"{key} cannot be pickled ({type(error).__name__}: {error}): leave it out of the state"
        ) from error
    text = stream.getvalue()
    classes = set(_CLASS.findall(text))
    if any(_PARTS.match(each) for each in classes):
        raise Unsavable(
            f"{key} has a sharded tensor within a tuple or an object, of which one rank's part would be saved for all: "
            "put it into lists and dictionaries only"
        )
    if new := classes - _loaded:
        try:
            torch.load(io.BytesIO(text), map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            names = ", ".join(sorted(each.decode(errors="replace").replace("\n", ".") for each in new))
            raise Unsavable(
                f"{key} could be saved, but not restored: objects that could run code are not loaded ({names}). Give "
                "numbers, texts, lists or tensors of it, give what has a state_dict a name of its own in the state, or "
                "allow its class with torch.serialization.add_safe_globals"
            ) from error
        _loaded.update(new)
    return text


@dataclass(frozen=True)
class Region:
    """An item's place in the shard."""

    offset: int
    length: int
    template: Template | None  # None: an object
    shape: torch.Size | None = None
    dtype: torch.dtype | None = None


class Registered:
    """A slot's pages, known to CUDA, which then copies straight into them: three times as fast. If it can.

    They are let go of before the memory is: what comes to lie there later would else be taken for them.
    """

    def __init__(self, slot: Slot) -> None:
        self._memory = slot.memory
        self._start = 0
        if torch.cuda.is_initialized():
            start: int = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
            if int(torch.cuda.cudart().cudaHostRegister(start, len(self._memory), 0)) == 0:
                self._start = start
            else:  # it is just slower; but the script's next kernel would be blamed
                with suppress(RuntimeError):
                    torch.zeros(1, device="cuda")

    def release(self) -> None:
        start, self._start = self._start, 0
        if start:
            torch.cuda.cudart().cudaHostUnregister(start)

    def __del__(self) -> None:
        self.release()


@dataclass(frozen=True)
class Furnished:
    """A slot that was made ready: where the tensors go, None for objects."""

    layout: str
    places: list[torch.Tensor | None]
    registered: Registered

    def release(self) -> None:
        """The slot's memory may go."""
        self.registered.release()


class ShardLayout:
    """The places of all items of a rank's shard, and what goes around them."""

    def __init__(self, plan: ShardPlan, values: Sequence[Any]) -> None:
        self.plan = plan
        self.regions: list[Region] = []
        at = 0
        for item, value in zip(plan.items, values, strict=True):
            region = _region(at, value, item.index.fqn)
            self.regions.append(region)
            at = -(-(at + region.length) // ALIGN) * ALIGN
        self.length = -(-at // PAGE) * PAGE  # whole pages can be written past the page cache
        numbers = (number for region in self.regions for number in (region.offset, region.length))
        self.table = b"".join(map(_BLANK.pack, numbers))
        self.size = self.length + len(self.table) + len(plan.contents) + len(plan.blanks)
        self.name = hashlib.sha256(self.table + plan.run.encode()).hexdigest()[:16]

    def furnish(self, slot: Slot) -> Furnished:
        """Write into a slot what stays the same."""
        data = slot.data
        places: list[torch.Tensor | None] = []
        for region in self.regions:
            places.append(_place(data, region))
            if region.template is not None:
                before, after = region.template.before, region.template.after
                data[region.offset : region.offset + len(before)] = before
                end = region.offset + region.length
                data[end - len(after) : end] = after
        at = self.length
        for text in (self.table, self.plan.contents, self.plan.blanks):
            data[at : at + len(text)] = text
            at += len(text)
        return Furnished(self.name, places, Registered(slot))

    def fill(
        self,
        slot: Slot,
        places: Sequence[torch.Tensor | None],
        values: Sequence[Any],
        later: frozenset[int] = frozenset(),
    ) -> list[Pair] | None:
        """Copy the state into a slot, but for tensors whose addresses are in `later`: what is left to be copied.

        None: an object has outgrown its region, and a new layout is needed.
        """
        texts = []
        for item, region, value in zip(self.plan.items, self.regions, values, strict=True):
            if region.template is None:
                text = pickled(value, item.index.fqn)
                if len(text) > region.length:
                    return None
                texts.append((region.offset, text))
        now: list[Pair] = []
        left: list[Pair] = []
        for place, value in zip(places, values, strict=True):
            if place is not None:
                (left if later and value.is_cuda and value.data_ptr() in later else now).append((place, value))
        with torch.no_grad():
            _copy(now)
        data = slot.data
        for offset, text in texts:
            data[offset : offset + len(text)] = text
        return left


def _region(at: int, value: Any, key: str) -> Region:
    if isinstance(value, torch.Tensor):
        form = template(value.dtype, value.shape)
        return Region(at, form.length, form, value.shape, value.dtype)
    return Region(at, 2 * len(pickled(value, key)) + _OBJECT_ROOM, None)


def _place(data: memoryview, region: Region) -> torch.Tensor | None:
    if region.template is None or region.template.nbytes == 0:
        return None
    assert region.shape is not None
    at = region.offset + len(region.template.before)
    return torch.frombuffer(data, dtype=region.dtype, count=region.shape.numel(), offset=at).view(region.shape)


def _copy(pairs: list[Pair]) -> None:
    cuda = {value.device for _, value in pairs if value.is_cuda}
    streams = {device: torch.cuda.Stream(device) for device in cuda}
    for device, stream in streams.items():
        stream.wait_stream(torch.cuda.current_stream(device))
    for place, value in pairs:
        if value.is_cuda:
            with torch.cuda.stream(streams[value.device]):
                place.copy_(value, non_blocking=True)
        else:
            place.copy_(value)
    for stream in streams.values():
        stream.synchronize()
