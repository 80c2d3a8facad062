"""Where a checkpoint is loaded to: the objects that the user gave."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, MutableMapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from outlast.checkpoint.trainer.flat import Nested, Path, flatten, nest
from outlast.checkpoint.trainer.optimizers import NamedMetadata, load_optimizer, optimizer_state, owner, with_a_state
from outlast.checkpoint.trainer.per_rank import PerRank, label, saved_by
from outlast.checkpoint.trainer.sources import Stateful, is_expanded, rank_and_world


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
        self._rank, self._world = rank_and_world(group)
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
                load_optimizer(value, owner(value, self._state), part)
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
            return optimizer_state(optimizer, model)
        nested = with_a_state(optimizer, model)
        if not stored <= flatten({name: nested})[0].keys():  # of others than those that it has trained here
            optimizer.state.clear()
            nested = with_a_state(optimizer, model)
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
        return live if not is_expanded(live) else live.clone()
    return torch.empty(stored.size, dtype=stored.properties.dtype)
