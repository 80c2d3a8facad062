"""Checkpoints of others: files of `torch.save`, safetensors, directories of DCP, Hugging Face's and Lightning's.

They are read as they are (`restore(state, source="model.pt")`), or become a checkpoint of Outlast's, for any number of
ranks (`outlast checkpoints import`). Nothing in them is run: what is pickled is loaded with `weights_only=True`.

What a trainer's checkpoint consists of is called as in the examples: `model`, `optim`, `schedule`.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from outlast.checkpoint.memory.slot import HEAD, Slot, Ticket
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.format import Damaged, Save
from outlast.checkpoint.storage.persist import persist
from outlast.checkpoint.storage.storage import Address
from outlast.checkpoint.trainer.export import assemble
from outlast.checkpoint.trainer.flat import flatten
from outlast.checkpoint.trainer.layout import ShardLayout, make_plan
from outlast.checkpoint.trainer.reader import CheckpointSource

SAFETENSORS = ".safetensors"
TRAINER_STATE = "trainer_state.json"
_STEPS = ("step", "global_step", "iteration")  # what scripts call it
_LIGHTNING = "pytorch-lightning_version"


class ForeignState(NamedTuple):
    """What there is in it."""

    state: dict[str, Any]
    step: int = 0  # as far as it says


def is_foreign(path: Address) -> bool:
    """Whether it is neither one of ours nor of DCP's."""
    return isinstance(path, Path) and path.exists() and not (path / disk.METADATA).exists()


@contextmanager
def open_foreign(path: Path) -> Iterator[CheckpointSource]:
    """It, to be loaded on any number of ranks. Raises `Damaged`, OSError."""
    try:
        flat, paths = flatten(read_foreign(path).state)
    except ValueError as error:
        raise Damaged(str(error)) from error
    stored = {name: _described(value) for name, value in flat.items()}
    metadata = Metadata(state_dict_metadata=stored, planner_data=paths, storage_data={})
    yield CheckpointSource(str(path), metadata, {}, values=flat)


def import_checkpoint(path: Path, directory: Address, *, step: int | None = None, names: Mapping[str, str]) -> Address:
    """Make a checkpoint of Outlast's of it, and return where. `names`: what to call its entries.

    The state is put together in a file beside it, so it may be larger than memory.
    """
    room_in = directory if isinstance(directory, Path) else Path(tempfile.gettempdir())
    origin = disk.origin(directory, make=True)
    with tempfile.TemporaryFile(dir=room_in) as room:
        found = assembled(path, room.fileno()) if (path / disk.METADATA).exists() else read_foreign(path)
        missing = [name for name in names if name not in found.state]
        if missing:
            raise ValueError(f"{path} has no {missing[0]!r}; there are: {', '.join(found.state)}")
        state = {names.get(name, name): value for name, value in found.state.items()}
        return _write(state, directory, origin, found.step if step is None else step)


def read_foreign(path: Path) -> ForeignState:
    """What a file or a trainer's directory holds, under our names. Raises ValueError, OSError."""
    if path.is_dir():
        return _of_hugging_face(path)
    if path.suffix == SAFETENSORS:
        return ForeignState({"model": _safetensors(path)})
    found = _torch_file(path)
    if not isinstance(found, Mapping):
        raise ValueError(f"{path} holds a {type(found).__name__}, and no dictionary: save a state_dict")
    if _LIGHTNING in found:
        return _of_lightning(found)
    if all(isinstance(value, torch.Tensor) for value in found.values()):
        return ForeignState({"model": _unwrapped(found)})
    step = next((found[name] for name in _STEPS if type(found.get(name)) is int), 0)
    return ForeignState({str(key): value for key, value in found.items()}, step)


def assembled(path: Path, room: int) -> ForeignState:
    """What a directory of DCP's holds, put together in a file."""
    state = assemble(path, room)
    step = next((state[name] for name in _STEPS if type(state.get(name)) is int), 0)
    return ForeignState(state, step)


def _of_lightning(found: Mapping[str, Any]) -> ForeignState:
    state = {"model": _unwrapped(found["state_dict"])}
    for name, its in (("optim", "optimizer_states"), ("schedule", "lr_schedulers")):
        several = found.get(its) or []
        state |= {name if len(several) == 1 else f"{name}{number}": each for number, each in enumerate(several)}
    state |= {name: found[name] for name in ("epoch", "global_step") if name in found}
    return ForeignState(state, int(found.get("global_step", 0)))


def _of_hugging_face(path: Path) -> ForeignState:
    files = sorted(path.glob("model*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    if not files:
        raise ValueError(
            f"{path} is not a checkpoint: it has no {disk.METADATA}, model*.safetensors or pytorch_model*.bin"
        )
    state: dict[str, Any] = {"model": {}}
    for file in files:
        state["model"] |= _safetensors(file) if file.suffix == SAFETENSORS else _torch_file(file)
    for name, its in (("optim", "optimizer.pt"), ("schedule", "scheduler.pt"), ("scaler", "scaler.pt")):
        if (path / its).exists():
            state[name] = _torch_file(path / its)
    step = 0
    if (path / TRAINER_STATE).exists():
        text = (path / TRAINER_STATE).read_text()
        step = int(json.loads(text)["global_step"])
        state |= {"trainer": text, "random": {}}  # as `outlast.integrations.huggingface` has them
    return ForeignState(state, step)


def _torch_file(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} has objects that are not loaded from files, because they could run code "
            f"({' '.join(str(error).split())[:200]}); allow their classes with torch.serialization.add_safe_globals"
        ) from error
    except OSError:
        raise
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(
            f"{path} is not a torch.save file, or is damaged: {' '.join(str(error).split())[:200]}"
        ) from error


def _is_zip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise ValueError("safetensors is not installed: pip install 'outlast[safetensors]'") from error
    try:
        found: dict[str, torch.Tensor] = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file, or is damaged: {error}") from error
    return found


def _unwrapped(state: Mapping[str, Any]) -> dict[str, Any]:
    """The names of a model's state without what DDP puts before all of them.

    >>> _unwrapped({"module.a": 1, "module.b": 2}), _unwrapped({"module.a": 1, "b": 2})
    ({'a': 1, 'b': 2}, {'module.a': 1, 'b': 2})
    """
    before = "module." if all(name.startswith("module.") for name in state) else ""
    return {name.removeprefix(before): value for name, value in state.items()}


def _described(value: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if not isinstance(value, torch.Tensor):
        return BytesStorageMetadata()
    whole = ChunkStorageMetadata(offsets=torch.Size([0] * value.dim()), sizes=value.size())
    return TensorStorageMetadata(TensorProperties(dtype=value.dtype), value.size(), [whole])


def _write(state: Mapping[str, Any], directory: Address, origin: str, step: int) -> Address:
    """By way of a slot, as a snapshot is, but that it is a file on disk."""
    flat, paths = flatten(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        plan = make_plan(flat, paths, origin)
    values = plan.values(flat)
    layout = ShardLayout(plan, values)
    save = Save(run=plan.run, sequence=0, step=step, generation=0, world=1, lineage=secrets.token_hex(8))
    ticket = Ticket(
        save=save,
        rank=0,
        here=1,
        saved_at=time.time(),
        origin=origin,
        directory=str(directory),
        keep_last=1,
        durable=True,
        layout=layout.name,
        length=layout.length,
        table=len(layout.table),
        contents=len(plan.contents),
        blanks=len(plan.blanks),
    )
    room_in = directory if isinstance(directory, Path) else None
    with tempfile.TemporaryDirectory(dir=room_in, prefix=".import-") as private:
        path = Path(private) / "0.0"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(descriptor, 0, HEAD + layout.size)
        slot = Slot(str(path), descriptor)
        slot.begin()
        layout.fill(slot, layout.furnish(slot).places, values)
        slot.seal(ticket)
        outcome = persist([path], ticket)
        slot.close()
    if outcome.problem:
        raise OSError(outcome.problem)
    return directory / Path(outcome.path).name
