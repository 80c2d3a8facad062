"""Optimizers by the full names of their parameters, as DCP has them; also those that were saved by numbers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.nn.parallel import DistributedDataParallel

from outlast.checkpoint.trainer.flat import KEYS, Nested, Path
from outlast.worker.session import session

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


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
        own = {key: path for key, path in paths.items() if key.startswith(before) and path[2] != KEYS}
        if not own or not all(str(path[2]).isdecimal() for path in own.values()):
            continue
        numbered.add(name)
        parameters = [each for group in optimizer_state(value, model)["param_groups"] for each in group["params"]]
        for key, (_, _, number, *rest) in own.items():
            if int(number) < len(parameters):
                paths[key] = (name, "state", parameters[int(number)], *rest)
                names[key] = ".".join(map(str, paths[key]))
    if not numbered:
        return NamedMetadata(metadata, {}, frozenset())
    dropped = {f"{name}.state.{KEYS}" for name in numbered}
    stored = {names.get(key, key): its for key, its in metadata.state_dict_metadata.items() if key not in dropped}
    places = {
        replace(index, fqn=names.get(index.fqn, index.fqn)): place for index, place in metadata.storage_data.items()
    }
    ways = {names.get(key, key): path for key, path in paths.items() if key not in dropped}
    renamed = replace(metadata, state_dict_metadata=stored, planner_data=ways, storage_data=places)
    return NamedMetadata(renamed, names, frozenset(numbered))


def load_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None, part: Nested) -> None:
    """Give an optimizer the state that was loaded; by numbers, where no model is known."""
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


def with_a_state(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Nested:
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


def optimizer_state(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Nested:
    """The state of an optimizer by full names of parameters, as DCP would give it; tensors are the live ones."""
    if isinstance(model, DistributedDataParallel):
        model = model.module
    names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    groups, state = [], {}
    for group in optimizer.param_groups:
        groups.append(group | {"params": [names[id(parameter)] for parameter in group["params"]]})
        for parameter in group["params"]:
            if parameter in optimizer.state:
                state[names[id(parameter)]] = dict(optimizer.state[parameter])
    return {"state": state, "param_groups": groups}


def plain_name(name: str) -> str:
    """The name of a parameter without what wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
