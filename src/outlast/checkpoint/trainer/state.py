"""What the user gives to be saved, as a flat dictionary with DCP's names; and back again.

Models and optimizers go through `torch.distributed.checkpoint.state_dict`, so that the keys are those that users of DCP
expect: full names of parameters, without what DDP, FSDP or torch.compile put before them. Those functions take a tenth
of a second for a model of some hundred tensors. So there is a quick way beside them for the common case, which is used
only as long as it was seen to give the very same keys and the very same memory when the ranks planned together.
"""

from __future__ import annotations

import inspect
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from outlast.checkpoint.trainer import split
from outlast.checkpoint.trainer.collector import paused
from outlast.checkpoint.trainer.per_rank import PerRank, label, saved_by
from outlast.worker.session import session

Path = tuple[str | int, ...]
Nested = dict[str, Any]
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
_KEYS = "(keys)"  # beside what is in a dictionary whose keys are not texts: what they are


@runtime_checkable
class Stateful(Protocol):
    """Anything with a state: schedulers, samplers, data loaders, scalers."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Sources:
    """Reads the state of what the user gave."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._quick: set[str] = set()  # names for which the quick way gives the same

    def read(self, state: Mapping[str, Any], *, verify: bool) -> Nested:
        """The state as nested dictionaries; tensors are the live ones. `verify`: see whether the quick way is right."""
        return {name: self._read(name, value, state, verify=verify) for name, value in state.items()}

    def _read(self, name: str, value: Any, state: Mapping[str, Any], *, verify: bool) -> Any:
        if verify:
            split.refuse(name, value)
        if isinstance(value, PerRank):
            nested = value.state_dict()
            if verify:
                _refuse_dtensors(name, nested)
            return {label(*_rank_and_world(self._group)): nested}
        if isinstance(value, torch.nn.Module):
            if not verify and name in self._quick:
                return _model(value)
            slow = dcp.get_model_state_dict(value)
            for key, each in slow.items():
                if _is_expanded(each):
                    raise ValueError(
                        f"{name}.{key} is expanded, and could not be loaded: give the model a clone() of it"
                    )
            if any(isinstance(each, ShardedTensor) for each in slow.values()):
                raise ValueError(
                    f"{name} is sharded by FSDP without a device mesh, in a way that torch has given up: make it with "
                    "FullyShardedDataParallel(…, device_mesh=…), or with torch.distributed.fsdp.fully_shard"
                )
            return self._compared(name, _model(value), slow)
        if isinstance(value, torch.optim.Optimizer):
            model = owner(value, state)
            if model is None:
                return value.state_dict()
            if verify and (others := [key for key in value.state if not isinstance(key, torch.Tensor)]):
                raise ValueError(
                    f"{name} has a state, {others[0]!r}, that belongs to none of its parameters, and DCP has no name "
                    f"for such: keep it in the optimizer's param_groups, or wrap it, outlast.PerRank({name})"
                )
            # Of an optimizer that has done nothing yet, DCP's function would make a state, by a step.
            if not value.state or (not verify and name in self._quick):
                return _optimizer(value, model)
            return self._compared(name, _optimizer(value, model), dcp.get_optimizer_state_dict(model, value))
        return value.state_dict() if isinstance(value, Stateful) else value

    def _compared(self, name: str, quick: Nested, slow: Nested) -> Nested:
        if _same(flatten(quick)[0], flatten(slow)[0]):
            self._quick.add(name)
            return quick
        self._quick.discard(name)
        return slow


def _refuse_dtensors(name: str, nested: Nested) -> None:
    for key, value in flatten({name: nested})[0].items():
        if isinstance(value, DTensor):
            raise ValueError(f"{key} is a DTensor, which knows where its parts belong: give {name} without PerRank")


def _rank_and_world(group: dist.ProcessGroup | None) -> tuple[int, int]:
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def owner(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> torch.nn.Module | None:
    """The model in `state` whose parameters an optimizer has."""
    if not _steps_alone(optimizer):
        return None
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for value in state.values():
        if isinstance(value, torch.nn.Module) and wanted <= {id(parameter) for parameter in value.parameters()}:
            return value
    return None


def _steps_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Whether DCP can give it a state, which it does by a step with gradients of zeros. LBFGS has one state for all of
    its parameters, which grows; SparseAdam wants sparse gradients; others cannot do without a closure. These are saved
    by numbers, as their own state_dict has it.
    """
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        return False
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is None or closure.default is not inspect.Parameter.empty


@paused()
def flatten(nested: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
    """Leaves by full name, as DCP names them, and the way to each.

    Lists are followed if there are tensors or dictionaries in them, as DCP does. A dictionary whose keys are not all
    texts is one object, so that they stay what they are, unless there are tensors in it: then its keys are beside them.

    >>> flatten({"a": {"b": 1, "c": [1, 2]}, "d": [{"e": 5}]})[0]
    {'a.b': 1, 'a.c': [1, 2], 'd.0.e': 5}
    """
    flat: dict[str, Any] = {}
    paths: dict[str, Path] = {}

    def visit(name: str, path: Path, value: Any) -> None:
        mapping, sequence = _contains(value.__class__)
        if mapping and value and (_texts(value) or _has_tensors(value)):
            if _KEYS in value:
                raise ValueError(f"{name} has a key {_KEYS!r}, which means something else in a checkpoint: rename it")
            for key, inner in value.items():
                visit(f"{name}.{key}", (*path, str(key)), inner)
            if not _texts(value):
                visit(f"{name}.{_KEYS}", (*path, _KEYS), list(value))
        elif sequence and any(isinstance(each, Mapping) or _has_tensors(each) for each in value):
            for index, inner in enumerate(value):
                visit(f"{name}.{index}", (*path, index), inner)
        else:
            if name in flat:
                raise ValueError(f"two things in the state are called {name}: rename one")
            flat[name], paths[name] = value, path

    for key, value in nested.items():
        visit(str(key), (str(key),), value)
    return flat, paths


def nest(flat: Mapping[str, Any], paths: Mapping[str, Path]) -> Nested:
    """The inverse of `flatten`.

    >>> nest({"a.b": 1, "d.0.e": 5}, {"a.b": ("a", "b"), "d.0.e": ("d", 0, "e")})
    {'a': {'b': 1}, 'd': [{'e': 5}]}
    """
    root: Any = {}
    for name, value in flat.items():
        path, at = paths[name], root
        for key, following in pairwise(path):
            at = _enter(at, key, [] if isinstance(following, int) else {})
        _enter(at, path[-1], value)
    result: Nested = _with_own_keys(root)
    return result


def _with_own_keys(value: Any) -> Any:
    if type(value) is list:
        return [_with_own_keys(each) for each in value]
    if type(value) is not dict:  # what was saved as one object stays of its kind: a Counter
        return value
    keys = {str(key): key for key in value.get(_KEYS, ())}
    return {keys.get(name, name): _with_own_keys(inner) for name, inner in value.items() if name != _KEYS}


def _enter(container: Any, key: str | int, value: Any) -> Any:
    if isinstance(key, int):
        while len(container) <= key:
            container.append(None)
        if container[key] is None:
            container[key] = value
        return container[key]
    return container.setdefault(key, value)


@dataclass(frozen=True)
class NamedMetadata:
    """What a checkpoint holds, with full names for parameters of optimizers that were saved by their numbers."""

    metadata: Metadata
    names: Mapping[str, str]  # as it is stored: as it is called here
    numbered: frozenset[str]  # optimizers whose groups name parameters by numbers


def name_parameters(metadata: Metadata, state: Mapping[str, Any]) -> NamedMetadata:
    """`optim.state.3.exp_avg`, as `optimizer.state_dict()` has it, is `optim.state.layer.weight.exp_avg` to DCP."""
    paths: dict[str, Path] = dict(metadata.planner_data or {})
    names: dict[str, str] = {}
    numbered = set()
    for name, value in state.items():
        model = owner(value, state) if isinstance(value, torch.optim.Optimizer) else None
        if model is None:
            continue
        before = f"{name}.state."
        own = {key: path for key, path in paths.items() if key.startswith(before) and path[2] != _KEYS}
        if not own or not all(str(path[2]).isdecimal() for path in own.values()):
            continue
        numbered.add(name)
        parameters = [each for group in _optimizer(value, model)["param_groups"] for each in group["params"]]
        for key, (_, _, number, *rest) in own.items():
            if int(number) < len(parameters):
                paths[key] = (name, "state", parameters[int(number)], *rest)
                names[key] = ".".join(map(str, paths[key]))
    if not numbered:
        return NamedMetadata(metadata, {}, frozenset())
    dropped = {f"{name}.state.{_KEYS}" for name in numbered}
    stored = {names.get(key, key): its for key, its in metadata.state_dict_metadata.items() if key not in dropped}
    places = {
        replace(index, fqn=names.get(index.fqn, index.fqn)): place for index, place in metadata.storage_data.items()
    }
    ways = {names.get(key, key): path for key, path in paths.items() if key not in dropped}
    renamed = replace(metadata, state_dict_metadata=stored, planner_data=ways, storage_data=places)
    return NamedMetadata(renamed, names, frozenset(numbered))


class Targets:
    """Where a checkpoint is loaded to: tensors that are there already are filled, all else is made anew."""

    def __init__(
        self,
        state: Mapping[str, Any],
        named: NamedMetadata,
        group: dist.ProcessGroup | None = None,
        *,
        strict: bool = True,
    ) -> None:
        metadata = named.metadata
        self._numbered = named.numbered
        self._state = state
        self._strict = strict  # else what only one of the two has is left as it is
        self._live_parts: dict[str, Any] = {}  # what was there of values that are replaced
        self._kept: dict[str, Any] = {}  # values that the checkpoint does not have
        self._rank, self._world = _rank_and_world(group)
        self._names = metadata.state_dict_metadata
        self._paths: dict[str, Path] = dict(metadata.planner_data or {})
        self.flat: dict[str, Any] = {}
        self.paths: dict[str, Path] = {}
        # What may not fit comes first: then nothing was changed yet.
        for name, value in sorted(state.items(), key=lambda each: not isinstance(each[1], PerRank)):
            self._add(name, value)

    def write_back(self) -> None:
        """Give what was loaded to the objects that it belongs to."""
        loaded = nest(self.flat | self._kept, self.paths)
        for name, value in self._state.items():
            part = _like(self._live_parts.get(name), loaded.get(name, {}))
            if isinstance(value, torch.nn.Module):
                dcp.set_model_state_dict(value, part)
            elif isinstance(value, torch.optim.Optimizer):
                _load_optimizer(value, owner(value, self._state), part)
            elif isinstance(value, PerRank):
                value.load_state_dict(part[label(self._rank, self._world)])
            elif isinstance(value, Stateful):
                value.load_state_dict(part)
            elif isinstance(self._state, MutableMapping):
                self._state[name] = part

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, torch.nn.Module):
            self._live(name, dcp.get_model_state_dict(value))
        elif isinstance(value, torch.optim.Optimizer) and (model := owner(value, self._state)) is not None:
            self._live(name, self._optimizer(name, value, model))
        else:
            nested = value.state_dict() if isinstance(value, Stateful) else value
            self._stored(name, nested, per_rank=isinstance(value, PerRank))

    def _optimizer(self, name: str, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Nested:
        """With a state of those parameters that have one in the checkpoint: some may not have been trained yet."""
        before = f"{name}.state."
        stored = {key for key in self._names if key.startswith(before)}
        if not stored:  # it had done nothing yet
            optimizer.state.clear()
            return _optimizer(optimizer, model)
        nested = _with_a_state(optimizer, model)
        if not stored <= flatten({name: nested})[0].keys():  # of others than those that it has trained here
            optimizer.state.clear()
            nested = _with_a_state(optimizer, model)
        for parameter, own in list(nested["state"].items()):
            if stored.isdisjoint(flatten({f"{before}{parameter}": own})[0]):
                del nested["state"][parameter]
        return nested

    def _live(self, name: str, nested: Nested) -> None:
        """What the object has now is what it wants."""
        flat, paths = flatten({name: nested})
        for key, path in self._options(name, nested).items():
            if key not in flat:
                flat[key], paths[key] = None, path
        missing = [key for key in flat if key not in self._names]
        if self._strict:
            self._refuse_another(name, flat, missing)
        if not self._strict or name in self._numbered:  # which parameters an optimizer has is not up to the checkpoint
            missing += [
                key for key, path in paths.items() if path[1:2] == ("param_groups",) and path[3:] == ("params",)
            ]
        self._kept |= {key: flat.pop(key) for key in {*missing}}
        self.flat |= flat
        self.paths |= paths

    def _options(self, name: str, nested: Nested) -> dict[str, Path]:
        """What is stored of an optimizer's groups: they take options that they do not have, as a schedule adds."""
        groups = nested.get("param_groups")
        if not isinstance(groups, list):
            return {}
        before = f"{name}.param_groups."
        found = {key: path for key, path in self._paths.items() if key.startswith(before)}
        return {key: path for key, path in found.items() if len(path) == 4 and int(path[2]) < len(groups)}

    def _refuse_another(self, name: str, flat: Mapping[str, Any], missing: Sequence[str]) -> None:
        """Raise ValueError if an object is not like the one that was saved."""
        advice = "the state is not the one that was saved (strict=False loads what both have)"
        if missing:
            raise ValueError(f"it has no {missing[0]}{_and_more(missing)}: {advice}")
        extra = [key for key in self._names.keys() - flat.keys() if self._paths.get(key, (key,))[0] == name]
        if extra:
            extra.sort()
            raise ValueError(f"it has {extra[0]}{_and_more(extra)}, for which there is no place: {advice}")
        for key, value in flat.items():
            stored = self._names[key]
            if isinstance(stored, TensorStorageMetadata) and isinstance(value, torch.Tensor):
                saved = stored.properties.dtype
                if saved != value.dtype:
                    raise ValueError(f"it has {key} as {saved}, and not as {value.dtype}: {advice}, converted")

    def _stored(self, name: str, nested: Any, *, per_rank: bool = False) -> None:
        """What was stored is what the object gets: a sampler knows nothing of what it had when it was saved."""
        found = {key: path for key in self._names if (path := self._paths.get(key, (key,)))[0] == name}
        if not found:
            raise ValueError(
                f"it has no {name!r}: leave it out of the state to be restored, or out of the next restore"
            )
        ranks = saved_by(path[1] if len(path) > 1 else "" for path in found.values())
        if bool(ranks) is not per_rank:
            how = "with PerRank: wrap it" if ranks else "without PerRank: give it as it was"
            raise ValueError(f"{name!r} was saved {how}")
        if per_rank:
            self._refuse_other_world(name, ranks)
            own = label(self._rank, self._world)
            nested = {own: nested}
            found = {key: path for key, path in found.items() if path[1] == own}
        self._live_parts[name] = nested
        live = flatten({name: nested})[0]
        for key, path in found.items():
            self.flat[key] = _target(self._names[key], live.get(key))
            self.paths[key] = path

    def _refuse_other_world(self, name: str, ranks: int) -> None:
        if ranks != self._world:
            raise ValueError(
                f"{name!r} was saved by {ranks} ranks, each with a state of its own (PerRank), and there are "
                f"{self._world} now: start with {ranks} ranks, or bring it to {self._world} with the converter of the "
                "framework that has split it"
            )


def _and_more(keys: Sequence[str]) -> str:
    return f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""


def _is_expanded(value: Any) -> bool:
    """Whether elements of it share memory, so that it cannot be written to."""
    if not isinstance(value, torch.Tensor) or isinstance(value, ShardedTensor) or value.layout is not torch.strided:
        return False
    return any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True))


def _like(live: Any, loaded: Any) -> Any:
    """What was loaded, with the kinds of dictionaries that were there: a checkpoint knows of dictionaries only.

    >>> _like({"a": Counter()}, {"a": {"b": 1}, "c": {}})
    {'a': Counter({'b': 1}), 'c': {}}
    """
    if type(loaded) is list and isinstance(live, list):
        return [_like(one, other) for one, other in zip_longest(live[: len(loaded)], loaded)]
    if type(loaded) is not dict or not isinstance(live, Mapping):
        return loaded
    inner = {key: _like(live.get(key), value) for key, value in loaded.items()}
    if isinstance(live, defaultdict):
        return defaultdict(live.default_factory, inner)
    return type(live)(inner) if isinstance(live, OrderedDict | Counter) else inner


def _target(stored: Any, live: Any) -> Any:
    if not isinstance(stored, TensorStorageMetadata):
        return None
    if isinstance(live, torch.Tensor) and live.shape == stored.size and live.dtype == stored.properties.dtype:
        return live if not _is_expanded(live) else live.clone()
    return torch.empty(stored.size, dtype=stored.properties.dtype)


def _load_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None, part: Nested) -> None:
    if model is None:  # by numbers, which are texts in DCP's names
        if names := [key for key in part.get("state", {}) if not str(key).isdecimal()]:
            raise ValueError(f"an optimizer has a state of {names[0]!r}: give the model as well that it was saved with")
        optimizer.load_state_dict(part | {"state": {int(key): value for key, value in part.get("state", {}).items()}})
    elif optimizer.state:
        none: Nested = {parameter: {} for group in part["param_groups"] for parameter in group["params"]}
        with _none_frozen(optimizer):
            dcp.set_optimizer_state_dict(model, optimizer, part | {"state": none | part["state"]})
        for parameter in [parameter for parameter, own in optimizer.state.items() if not own]:
            del optimizer.state[parameter]
    else:
        for group, stored in zip(optimizer.param_groups, part["param_groups"], strict=True):
            group.update({key: value for key, value in stored.items() if key != "params"})


def _with_a_state(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Nested:
    """What torch says of it. If it has no state, torch makes one by a step, but only where nothing has a gradient."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        with session.no_training(), _none_frozen(optimizer):
            nested: Nested = dcp.get_optimizer_state_dict(model, optimizer)
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
    return nested


@contextmanager
def _none_frozen(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Torch makes and loads a state of what is trained now: what was trained before, or will be again, has one, too."""
    frozen = [each for group in optimizer.param_groups for each in group["params"] if not each.requires_grad]
    frozen = [each for each in frozen if each.is_floating_point() or each.is_complex()]
    try:
        for each in frozen:
            each.requires_grad_(True)
        yield
    finally:
        for each in frozen:
            each.requires_grad_(False)


def _model(module: torch.nn.Module) -> Nested:
    if isinstance(module, DistributedDataParallel):
        module = module.module
    return {_plain(name): value for name, value in module.state_dict().items()}


def _optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Nested:
    if isinstance(model, DistributedDataParallel):
        model = model.module
    names = {id(parameter): _plain(name) for name, parameter in model.named_parameters()}
    groups, state = [], {}
    for group in optimizer.param_groups:
        groups.append(group | {"params": [names[id(parameter)] for parameter in group["params"]]})
        for parameter in group["params"]:
            if parameter in optimizer.state:
                state[names[id(parameter)]] = dict(optimizer.state[parameter])
    return {"state": state, "param_groups": groups}


def _plain(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(_identical(value, other[key]) for key, value in one.items())


def _identical(one: Any, other: Any) -> bool:
    if isinstance(one, DTensor) and isinstance(other, DTensor):
        return one.placements == other.placements and _identical(one._local_tensor, other._local_tensor)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        pieces = ((each.data_ptr(), each.shape, each.stride(), each.dtype, each.device) for each in (one, other))
        return next(pieces) == next(pieces)
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return False
    try:
        return type(one) is type(other) and bool(one == other)
    except (ValueError, RuntimeError):  # arrays, and tensors in tuples, are not equal or unequal as a whole
        return False


@lru_cache(maxsize=1024)
def _contains(kind: type) -> tuple[bool, bool]:
    """Whether it is a mapping, or a list. Asked thousands of times per save, and isinstance is slow here."""
    return issubclass(kind, Mapping), issubclass(kind, list)


def _texts(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) for key in value)


def _has_tensors(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    inner: Iterable[Any] = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return any(map(_has_tensors, inner))
