"""One file of a checkpoint, for those who do not have Outlast: `torch.save`'s, or safetensors'; no longer sharded.

Every chunk is verified when it is read. Tensors are put together in a file without a name beside the one that is to be
made, which is mapped: a state that is larger than memory can be exported. What was asked for appears whole, or not at
all, and never over something else.
"""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from outlast.checkpoint.storage.format import Damaged
from outlast.checkpoint.storage.storage import Address
from outlast.checkpoint.trainer.flat import nest
from outlast.checkpoint.trainer.reader import CheckpointSource, open_checkpoint, read

SAFETENSORS, TORCH = "safetensors", "torch"
FORMATS = (SAFETENSORS, TORCH)
_SUFFIXES = {".safetensors": SAFETENSORS, ".pt": TORCH, ".pth": TORCH, ".bin": TORCH, ".ckpt": TORCH}
_ALIGN = 64


def format_of(out: Path) -> str:
    """
    >>> format_of(Path("model.safetensors")), format_of(Path("model.pt"))
    ('safetensors', 'torch')
    """
    if out.suffix not in _SUFFIXES:
        raise ValueError(f"what {out} should be is not clear from its name: give --format {' or '.join(FORMATS)}")
    return _SUFFIXES[out.suffix]


def export(
    path: Address, out: Path, kind: str, *, part: str = "", progress: Callable[[int], None] | None = None
) -> list[str]:
    """Write a checkpoint, or a part of its state, to one file: the names of what that kind of file cannot hold.

    export(Path("checkpoints/step-00000007"), Path("model.safetensors"), "safetensors", part="model")

    Raises ValueError, OSError, `Damaged`, each in one line.
    """
    if kind == SAFETENSORS:
        _safetensors()
    if out.exists():
        raise ValueError(f"{out} exists, and is not overwritten: remove it, or give another name")
    if not out.parent.is_dir():
        raise ValueError(f"{out.parent} is not a directory: make it")
    with (
        open_checkpoint(path, stream=True, progress=progress) as source,
        tempfile.TemporaryFile(dir=out.parent) as room,
    ):
        paths, tensors, objects = _assemble(source, part, room.fileno())
        skip = f"{part}." if part else ""
        if kind == TORCH:
            nested = nest(tensors | objects, paths)
            _whole(out, lambda draft: torch.save(nested[part] if part else nested, draft))
            return []
        named = {name.removeprefix(skip): tensor for name, tensor in tensors.items()}
        _whole(out, lambda draft: _safetensors().save_file(named, draft, metadata={"format": "pt"}))
        return sorted(name.removeprefix(skip) for name in objects)


def assemble(path: Address, room: int) -> dict[str, Any]:
    """The whole state of a checkpoint, of ours or of DCP's, its tensors put together in a file. Raises as `export`."""
    with open_checkpoint(path, foreign=True) as source:
        paths, tensors, objects = _assemble(source, "", room)
        return nest(tensors | objects, paths)


def _assemble(
    source: CheckpointSource, part: str, room: int
) -> tuple[dict[str, tuple[str | int, ...]], dict[str, torch.Tensor], dict[str, Any]]:
    """The way to each thing, the tensors and the objects, by name."""
    paths = _chosen(source.metadata, part)
    tensors = _targets(source.metadata, paths, room)
    flat: dict[str, Any] = {name: tensors.get(name) for name in paths}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group
            return paths, tensors, read(source, flat)
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        if isinstance(first, Damaged | OSError):
            raise first from None
        raise ValueError(f"{source.name} cannot be read: {' '.join(str(first).split())}") from error


def _chosen(contents: Metadata, part: str) -> dict[str, tuple[str | int, ...]]:
    """The way to each thing that is to be exported, by its name."""
    known: Mapping[str, tuple[str | int, ...]] = contents.planner_data or {}
    paths = {name: tuple(known.get(name, (name,))) for name in contents.state_dict_metadata}
    parts = list(dict.fromkeys(str(way[0]) for way in paths.values()))
    if part and part not in parts:
        raise ValueError(f"the state has no part {part!r}; there are: {', '.join(parts)}")
    return {name: way for name, way in paths.items() if not part or way[0] == part}


def _targets(contents: Metadata, names: Mapping[str, Any], room: int) -> dict[str, torch.Tensor]:
    """A place in the file for each tensor."""
    stored = {name: contents.state_dict_metadata[name] for name in names}
    forms = {name: each for name, each in stored.items() if isinstance(each, TensorStorageMetadata)}
    places, at = {}, 0
    for name, form in forms.items():
        places[name] = at
        at += -(-form.size.numel() * form.properties.dtype.itemsize // _ALIGN) * _ALIGN
    if at:
        os.posix_fallocate(room, 0, at)  # a disk that is full is an error now, and no SIGBUS later
        memory = memoryview(mmap.mmap(room, at))
    made = {}
    for name, form in forms.items():
        dtype, count = form.properties.dtype, form.size.numel()
        if count == 0:
            made[name] = torch.empty(form.size, dtype=dtype)
        else:
            made[name] = torch.frombuffer(memory, dtype=dtype, count=count, offset=places[name]).view(form.size)
    return made


def _whole(out: Path, write: Callable[[str], object]) -> None:
    """Have a file written beside its place, and put it there only if there is nothing."""
    draft = out.with_name(f".{out.name}.{secrets.token_hex(8)}.tmp")
    try:
        try:
            write(str(draft))
        except (RuntimeError, TypeError, KeyError) as error:  # of torch, when the disk is full; of safetensors
            raise ValueError(f"{out} cannot be written: {' '.join(str(error).split())}") from error
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        try:
            out.hardlink_to(draft)
        except FileExistsError:
            raise ValueError(f"{out} has come to be meanwhile, and is not overwritten: give another name") from None
        except OSError:  # a file system without links
            draft.rename(out)
    finally:
        draft.unlink(missing_ok=True)


def _safetensors() -> Any:
    try:
        from safetensors import torch as library
    except ModuleNotFoundError as error:
        raise ValueError("safetensors is not installed: pip install 'outlast[safetensors]'") from error
    return library
