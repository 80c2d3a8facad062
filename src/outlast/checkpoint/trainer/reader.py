"""Reads checkpoints and snapshots into the state, through DCP's load planner: on whatever number of ranks.

**Nothing untrusted runs.** DCP's `.metadata` is a pickle. It is read by an unpickler that knows DCP's own classes and
nothing else; objects are read with `weights_only=True`.
"""

from __future__ import annotations

import io
import mmap
import pathlib
import pickle
import pickletools
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.utils import _DistWrapper

from outlast.checkpoint.memory.shards import MemoryShard, ShardPlace
from outlast.checkpoint.memory.slot import Mark
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.format import Damaged, Save
from outlast.checkpoint.storage.storage import Address, storage_of
from outlast.checkpoint.trainer.layout import LARGE, template
from outlast.checkpoint.trainer.optimizers import NamedMetadata, name_parameters
from outlast.checkpoint.trainer.targets import Targets


def _member(kind: Any, name: Any) -> Any:
    """What takes the place of `getattr`, for one Enum."""
    if kind is metadata._MEM_FORMAT_ENCODING and name in kind.__members__:
        return kind[name]
    raise Damaged(f"it asks for {name!r} of {kind!r}, which no metadata of DCP needs")


_CLASSES: dict[tuple[str, str], Any] = {
    (metadata.__name__, name): getattr(metadata, name)
    for name in (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    )
} | {
    (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("pathlib", "PosixPath"): pathlib.PurePosixPath,
    ("pathlib._local", "PosixPath"): pathlib.PurePosixPath,
    # As Python 3.11.0 to 3.11.3 pickle an Enum.
    ("builtins", "getattr"): _member,
    ("__builtin__", "getattr"): _member,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return _CLASSES[module, name]
        value = getattr(torch, name, None) if module == "torch" else None
        if isinstance(value, torch.dtype):
            return value
        raise Damaged(f"it asks for {module}.{name}, which no metadata of DCP needs")


def parse(data: bytes | memoryview, name: str, *, ours: bool = False) -> Metadata:
    """DCP's metadata from its pickle. Raises `Damaged` for anything else, and runs nothing that it asks for.

    `ours`: it comes from our own memory, where nothing is damaged by chance.
    """
    try:
        if not ours:
            _check_sizes(data)
        parsed = _Unpickler(io.BytesIO(data)).load()
    except Damaged as damaged:
        raise Damaged(f"{name} is refused: {damaged}") from None
    except Exception as error:  # a damaged pickle may raise anything
        raise Damaged(f"{name} is damaged ({type(error).__name__}: {error})") from error
    if not _is_metadata(parsed):
        raise Damaged(f"{name} is damaged: it holds no metadata")
    return parsed


def _check_sizes(data: bytes | memoryview) -> None:
    """Refuse what asks for more memory than its length can need: the unpickler would take it before it finds out.

    What is cut short raises ValueError. The number of an object that is put aside decides how long the list of them is.
    """
    for opcode, argument, _ in pickletools.genops(bytes(data)):
        if opcode.name in _PUTS and (argument or 0) > len(data):
            raise Damaged(f"it puts aside {argument} objects, more than it can have")


_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")


def _is_metadata(parsed: Any) -> bool:
    """Whether all that is used of it later is there. An unpickler makes objects without their fields, if told so."""
    try:
        return (
            isinstance(parsed, Metadata)
            and all(isinstance(path, tuple) for path in (parsed.planner_data or {}).values())
            and all(isinstance(name, str) and _is_entry(each) for name, each in parsed.state_dict_metadata.items())
            and all(_is_placed(index, info) for index, info in (parsed.storage_data or {}).items())
        )
    except (AttributeError, TypeError):
        return False


def _is_entry(entry: Any) -> bool:
    if isinstance(entry, BytesStorageMetadata):
        return True
    return (
        isinstance(entry, TensorStorageMetadata)
        and isinstance(entry.properties.dtype, torch.dtype)
        and isinstance(entry.size, torch.Size)
        and all(isinstance(each, torch.Size) for chunk in entry.chunks for each in (chunk.offsets, chunk.sizes))
    )


def _is_placed(index: Any, info: Any) -> bool:
    return (
        isinstance(index, MetadataIndex)
        and isinstance(index.fqn, str)
        and isinstance(info, filesystem._StorageInfo)
        and isinstance(info.relative_path, str)
        and isinstance(info.offset, int)
        and isinstance(info.length, int)
    )


class Bytes(Protocol):
    """Those of a file, as a memoryview has them."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> memoryview: ...


class Fetched:
    """A file of a store as memory: what is looked at is fetched by chunks, once, each verified if its hash is known.

    Without `keep` it is forgotten when something else is looked at.
    """

    def __init__(
        self,
        path: Address,
        file: disk.File | None,
        name: str,
        size: int,
        *,
        keep: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._path, self._file, self._name = path, file, name
        self._storage = storage_of(path.parent)
        self._keep, self._progress = keep, progress
        self._mapping = mmap.mmap(-1, max(size, 1))
        self._memory = memoryview(self._mapping)[:size]
        self._spans = disk.spans(size)
        self._missing = set(range(len(self._spans)))

    def __len__(self) -> int:
        return len(self._memory)

    def __getitem__(self, part: slice) -> memoryview:
        start, stop, _ = part.indices(len(self))
        self.fetch(start, stop)
        return self._memory[start:stop]

    def fetch(self, start: int, stop: int) -> None:
        """Have this part of it. Raises `Damaged`, OSError."""
        wanted = range(start // disk.CHUNK, -(-stop // disk.CHUNK))
        if not self._keep:
            self._forget(wanted)
        numbers = [number for number in wanted if number in self._missing]
        pieces = self._storage.ranges(f"{self._path.name}/{self._name}", [self._spans[number] for number in numbers])
        for number, data in zip(numbers, pieces, strict=True):
            offset, length = self._spans[number]
            problem = disk.damage(self._path, self._file, number, data) if self._file is not None else ""
            if problem or len(data) != length:
                raise Damaged(problem or f"{self._path / self._name} ends early, in chunk {number}")
            self._memory[offset : offset + length] = data
            self._missing.discard(number)
            if self._progress is not None:
                self._progress(length)

    def _forget(self, wanted: range) -> None:
        for number in range(len(self._spans)):
            if number not in wanted and number not in self._missing:
                self._mapping.madvise(mmap.MADV_DONTNEED, *self._spans[number])
                self._missing.add(number)


class CheckpointSource:
    """A checkpoint or snapshot that is open to be read: its metadata, and its shards by name."""

    def __init__(
        self,
        name: str,
        contents: Metadata,
        shards: Mapping[str, Bytes],
        expect: Mapping[str, Callable[[int, int], None]] | None = None,
        save: Save | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.values = values  # of one that was read already, by name, and has no shards
        self.save = save  # None: of a checkpoint that is not one of ours
        self.metadata = contents
        self.shards = shards
        self.expect = expect or {}  # by shard: to be told of a large part that is about to be read

    def renamed(self, metadata: NamedMetadata) -> CheckpointSource:
        """The same, with other names for what is in it."""
        if not metadata.names:
            return self
        values = self.values
        if values is not None:
            values = {metadata.names.get(name, name): value for name, value in values.items()}
        return CheckpointSource(self.name, metadata.metadata, self.shards, self.expect, self.save, values)


@contextmanager
def open_checkpoint(
    path: Address,
    *,
    verify: tuple[int, int] | None = None,
    foreign: bool = False,
    stream: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Iterator[CheckpointSource]:
    """A checkpoint, of ours or of DCP's own; held so that nobody prunes it meanwhile, where that can be done.

    `verify`: read every byte of a share of the files, as one of so many ranks, before; which takes a manifest, unless
    it may be `foreign`, and then is taken as it is. What is not on a disk comes by chunks, each verified if there is a
    manifest; with `stream` all does, and nothing is kept that was read.
    Raises `Damaged`, OSError.
    """
    storage = storage_of(path.parent)
    with ExitStack() as held:
        sizes = storage.sizes(path.name)
        files: dict[str, disk.File] = {}
        save = None
        if disk.MANIFEST in sizes or (verify is not None and not foreign):
            if disk.MANIFEST in sizes:
                held.enter_context(storage.hold(path.name))
            manifest = disk.read_manifest(path)
            save = manifest.save
            files = {file.name: file for file in manifest.files}
            if (verify is not None or stream) and (problems := disk.check(path, manifest)):
                raise Damaged(next(iter(problems.values())))
        names = sorted(name for name in sizes if name.endswith(disk.SHARD))
        shards: dict[str, Bytes] = {}
        for name in (*names, disk.METADATA):
            memory = storage.mapped(f"{path.name}/{name}") if not stream else None
            shards[name] = (
                Fetched(path, files.get(name), name, sizes.get(name, 0), keep=not stream, progress=progress)
                if memory is None
                else memory
            )
        if verify is not None:
            rank, world = verify
            for file in list(files.values())[rank::world]:
                _verify(path, file, shards[file.name])
        contents = shards.pop(disk.METADATA)
        yield CheckpointSource(str(path), parse(contents[:], str(path / disk.METADATA)), shards, save=save)


def _verify(path: Address, file: disk.File, shard: Bytes) -> None:
    if isinstance(shard, Fetched):
        shard.fetch(0, len(shard))
    elif problems := disk.verify_file(path, file):  # not by the mapping: an error of the disk would be a SIGBUS
        raise Damaged(problems[0])


@contextmanager
def open_snapshot(places: Mapping[int, Sequence[Callable[[], ShardPlace]]], mark: Mark) -> Iterator[CheckpointSource]:
    """A snapshot in memory, from wherever the shards of its ranks are. Raises `Damaged` if one is nowhere."""
    with ExitStack() as held:
        tables, expect = [], {}
        shards: dict[str, Bytes] = {}
        contents = blanks = b""
        step = save = None
        for rank in sorted(places):
            shard = MemoryShard(rank, places[rank])
            held.callback(shard.close)
            table, text, blank = shard.tail()
            shards[disk.shard_name(rank)] = shard
            expect[disk.shard_name(rank)] = shard.expect
            tables.append(table)
            if rank == 0:
                contents, blanks, save = text, blank, shard.ticket.save
                step = save.step
            elif shard.ticket.save.step != step:
                raise Damaged(f"rank 0 has saved step {step} and rank {rank} step {shard.ticket.save.step} as one")
        name = f"the snapshot of step {step}" if step is not None else f"the snapshot {mark[0]}.{mark[1]}"
        metadata = parse(disk.fill_in(contents, blanks, b"".join(tables)), name, ours=True)
        yield CheckpointSource(name, metadata, shards, expect, save)


def load(
    source: CheckpointSource,
    state: Mapping[str, Any],
    group: dist.ProcessGroup | None = None,
    *,
    strict: bool = True,
) -> None:
    """Load it into the state. Collective. Raises ValueError for a state that does not fit, in one line; `Damaged` if
    the source turned out to be no good on the way: the state is then half of it, and to be loaded anew.
    """
    distributed = dist.is_available() and dist.is_initialized()
    try:
        named = name_parameters(source.metadata, state)
        source = source.renamed(named)
        targets = Targets(state, named, group, strict=strict)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a mapping is not writable
            targets.flat |= read(source, targets.flat, group, distributed=distributed)
        targets.write_back()
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        if isinstance(first, Damaged):  # noticed while it was read; the same on all ranks
            raise first from error
        raise ValueError(f"{source.name} cannot be loaded: {' '.join(str(first).split())}") from error
    except ValueError as error:
        raise ValueError(f"{source.name} cannot be loaded: {error}") from error


def read(
    source: CheckpointSource, flat: dict[str, Any], group: dist.ProcessGroup | None = None, *, distributed: bool = False
) -> dict[str, Any]:
    """Fill these tensors with what is stored under their names, and return the objects. Raises CheckpointException.

    What `dcp.load` does, but that it asks of each value whether it has a state of its own, which takes a quarter of the
    time where there are many.
    """
    wrapper = _DistWrapper(group, distributed, 0)
    planner, reader = Planner(), Reader(source)

    def plan() -> LoadPlan:
        planner.set_up_planner(flat, source.metadata, wrapper.is_coordinator)
        return planner.create_local_plan()

    agreed = wrapper.reduce_scatter("plan", plan, planner.create_global_plan)
    wrapper.all_gather("read", lambda: reader.read(planner.finish_plan(agreed), planner))
    return planner.objects


class Planner(DefaultLoadPlanner):  # type: ignore[misc]
    """DCP's, which would let objects be unpickled that can do anything."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.objects: dict[str, Any] = {}

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            self.objects[name] = torch.load(value, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"{name} is an object that is not loaded from files, because it could run code "
                f"({str(error).partition('.')[0]}); allow its class with torch.serialization.add_safe_globals"
            ) from error


class Reader:
    """Reads from memory what a plan of DCP's says."""

    def __init__(self, source: CheckpointSource) -> None:
        self._source = source
        self._storage: dict[Any, Any] = source.metadata.storage_data or {}

    def read(self, plan: LoadPlan, planner: Planner) -> None:
        items = sorted(plan.items, key=self._place)  # as it lies there
        with torch.no_grad(), self._looking_ahead(items):
            for item in items:
                self._read(item, planner)

    @contextmanager
    def _looking_ahead(self, items: Sequence[ReadItem]) -> Iterator[None]:
        """Meanwhile, tell the shards of the large parts that will be read: their pages can be mapped beforehand."""
        infos = [info for item in items if (info := self._storage.get(item.storage_index)) is not None]
        large = [info for info in infos if info.length >= LARGE and info.relative_path in self._source.expect]
        stop = threading.Event()

        def look() -> None:
            for info in large:
                if stop.is_set():
                    return
                self._source.expect[info.relative_path](info.offset, info.length)

        thread = threading.Thread(target=look, name="outlast-ahead", daemon=True)
        if large:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            if large:
                thread.join()

    def _read(self, item: ReadItem, planner: Planner) -> None:
        values = self._source.values
        if item.type is LoadItemType.BYTE_IO:
            if values is not None:
                planner.objects[item.dest_index.fqn] = values[item.storage_index.fqn]
            else:
                planner.load_bytes(item, io.BytesIO(self._bytes(item)))
            return
        tensor = values[item.storage_index.fqn] if values is not None else self._tensor(item, self._bytes(item))
        for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            tensor = tensor.narrow(dimension, start, length)
        target = planner.resolve_tensor(item).detach()
        if target.size() != tensor.size():
            raise ValueError(f"{item.dest_index.fqn} has shape {tuple(tensor.size())}, not {tuple(target.size())}")
        target.copy_(tensor)
        planner.commit_tensor(item, target)

    def _place(self, item: ReadItem) -> tuple[str, int]:
        info = self._storage.get(item.storage_index)
        return (info.relative_path, info.offset) if info is not None else ("", 0)

    def _bytes(self, item: ReadItem) -> memoryview:
        info = self._storage.get(item.storage_index)
        shard = self._source.shards.get(info.relative_path) if info is not None else None
        if info is None or shard is None or not 0 <= info.offset <= info.offset + info.length <= len(shard):
            raise ValueError(f"{item.storage_index.fqn} is not where the metadata says")
        if getattr(info, "transform_descriptors", None):
            raise ValueError(f"{item.storage_index.fqn} was written with an extension of DCP, which is not known here")
        return shard[info.offset : info.offset + info.length]

    def _tensor(self, item: ReadItem, view: memoryview) -> torch.Tensor:
        """A stored chunk: where it lies, if it looks as we would have written it; else as torch reads it."""
        index = item.storage_index
        stored = self._source.metadata.state_dict_metadata[index.fqn]
        assert isinstance(stored, TensorStorageMetadata)
        hint = stored.chunks[index.index or 0]
        chunk = hint if hint.offsets == index.offset else next(c for c in stored.chunks if c.offsets == index.offset)
        form = template(stored.properties.dtype, chunk.sizes)
        start = len(form.before)
        if len(view) != form.length or view[:start] != form.before:
            tensor: torch.Tensor = torch.load(io.BytesIO(view), map_location="cpu", weights_only=True)
            return tensor
        if form.nbytes == 0:
            return torch.empty(chunk.sizes, dtype=stored.properties.dtype)
        count = chunk.sizes.numel()
        return torch.frombuffer(view, dtype=stored.properties.dtype, count=count, offset=start).view(chunk.sizes)
