"""What may be in a state, and comes back as it was: the odd optimizers, tensors and objects of real scripts."""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.optim import lr_scheduler

import outlast
from outlast.checkpoint.trainer.checkpointer import Checkpointer
from outlast.checkpoint.trainer.layout import Unsavable
from ranks import on_ranks


class Branches(nn.Module):  # type: ignore[misc]
    """Of which a step trains some: parameters that had no gradient have no state in the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, data: torch.Tensor, *, both: bool) -> torch.Tensor:
        found: torch.Tensor = self.first(data)
        return found + self.second(data) if both else found


def branches(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = Branches()
    return {"model": model, "optim": torch.optim.Adam(model.parameters(), lr=0.1)}


def train(state: dict[str, Any], seed: int, *, both: bool = False) -> None:
    torch.manual_seed(seed)
    state["optim"].zero_grad()
    state["model"](torch.randn(4, 3), both=both).square().mean().backward()
    state["optim"].step()


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(
        torch.equal(value, theirs)
        for name in ("model", "optim")
        for value, theirs in zip(tensors(one[name].state_dict()), tensors(other[name].state_dict()), strict=True)
    )


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [tensor for each in inner for tensor in tensors(each)]


def test_parameters_that_were_not_trained_yet_have_no_state_afterwards_either(
    checkpointer: Callable[[], Checkpointer],
) -> None:
    state, saver = branches(0), checkpointer()
    train(state, 1)
    saver.save(1, state, durable=True)
    saver.wait()
    again = branches(5)
    assert checkpointer().restore(again) == 1
    assert equal(again, state)
    for each in (state, again):
        train(each, 2, both=True)
    assert equal(again, state)


def test_an_optimizer_that_has_trained_something_else_gets_the_state_of_all(
    checkpointer: Callable[[], Checkpointer],
) -> None:
    """As when a script goes back to an earlier step: what it has by then is more, or less, than what it had."""
    state, saver = branches(0), checkpointer()
    train(state, 1, both=True)
    saver.save(1, state, durable=True)
    saver.wait()
    again = branches(5)
    train(again, 2, both=False)
    assert checkpointer().restore(again) == 1
    assert equal(again, state)


def test_gradients_that_are_there_already_do_not_cost_the_optimizer_its_state(
    checkpointer: Callable[[], Checkpointer],
) -> None:
    state, saver = branches(0), checkpointer()
    train(state, 1, both=True)
    saver.save(1, state, durable=True)
    saver.wait()
    again = branches(5)
    again["model"](torch.ones(1, 3), both=True).sum().backward()  # to warm up, say
    assert checkpointer().restore(again) == 1
    assert equal(again, state)
    assert all(parameter.grad is not None for parameter in again["model"].parameters())


def test_what_is_frozen_when_it_is_restored_gets_its_state_for_when_it_is_not(
    checkpointer: Callable[[], Checkpointer],
) -> None:
    """A script that trains some layers later freezes them when it starts, also when it starts again."""
    state, saver = branches(0), checkpointer()
    train(state, 1, both=True)
    saver.save(1, state, durable=True)
    saver.wait()
    again = branches(5)
    again["model"].first.requires_grad_(False)
    assert checkpointer().restore(again) == 1
    assert not again["model"].first.weight.requires_grad
    again["model"].first.requires_grad_(True)
    for each in (state, again):
        train(each, 2, both=True)
    assert equal(again, state)


class Counts(torch.optim.SGD):  # type: ignore[misc]
    """With a state that belongs to no parameter."""

    def step(self, closure: Any = None) -> Any:
        self.state["steps"] = self.state.get("steps", 0) + 1
        return super().step(closure)


def test_a_state_of_an_optimizer_that_has_no_name_is_refused(checkpointer: Callable[[], Checkpointer]) -> None:
    state = branches(0)
    state["optim"] = Counts(state["model"].parameters(), momentum=0.9)
    train(state, 1)
    with pytest.raises(ValueError, match=r"optim has a state, 'steps', that belongs to none.*outlast.PerRank\(optim\)"):
        checkpointer().save(1, state)
    saver, wrapped = checkpointer(), outlast.PerRank(state["optim"])
    saver.save(1, {"model": state["model"], "optim": wrapped}, durable=True)
    saver.wait()
    again = branches(5)
    again["optim"] = Counts(again["model"].parameters(), momentum=0.9)
    assert checkpointer().restore({"model": again["model"], "optim": outlast.PerRank(again["optim"])}) == 1
    assert again["optim"].state["steps"] == 1
    assert equal(again, state)


def test_an_optimizer_without_the_model_that_it_was_saved_with_is_one_line(
    checkpointer: Callable[[], Checkpointer],
) -> None:
    state, saver = branches(0), checkpointer()
    train(state, 1)
    saver.save(1, state, durable=True)
    saver.wait()
    with pytest.raises(ValueError, match="give the model as well"):
        checkpointer().restore({"optim": state["optim"]})


def test_an_optimizer_that_needs_a_closure_goes_on(checkpointer: Callable[[], Checkpointer]) -> None:
    def made(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = nn.Linear(3, 1)
        return {"model": model, "optim": torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2, history_size=3)}

    def trained(state: dict[str, Any]) -> None:
        def closure() -> torch.Tensor:
            state["optim"].zero_grad()
            loss: torch.Tensor = state["model"](torch.arange(12.0).view(4, 3) / 12).square().mean()
            loss.backward()
            return loss

        state["optim"].step(closure)

    state, saver = made(0), checkpointer()
    for step in range(1, 4):
        trained(state)
        saver.save(step, state, durable=step == 3)
    saver.wait()
    again = made(5)
    assert checkpointer().restore(again) == 3
    for _ in range(3):
        trained(state)
        trained(again)
        assert equal(again, state)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.float64(0.5), "numpy"),
        ({"best": [np.arange(3)]}, "numpy"),
        (deque([1.0]), "collections.deque"),
        ([nn.Linear(1, 1)], "torch.nn.modules.linear.Linear"),
        (Path("a"), "pathlib"),
    ],
)
def test_what_could_not_be_restored_is_not_saved(
    checkpointer: Callable[[], Checkpointer], value: object, name: str
) -> None:
    """Else a training would go on for days, and its first failure would be its last."""
    with pytest.raises(Unsavable, match=rf"x(\.best)? could be saved, but not restored.*{name}"):
        checkpointer().save(1, {"x": value})


def test_a_value_that_becomes_one_that_could_not_be_restored_is_refused_then(
    checkpointer: Callable[[], Checkpointer],
) -> None:
    saver, state = checkpointer(), {"best": 0.0}
    saver.save(1, state)
    state["best"] = np.float32(0.5)
    with pytest.raises(Unsavable, match="best could be saved, but not restored"):
        saver.save(2, state)
    state["best"] = 0.5
    assert saver.save(3, state)


def test_tensors_without_values_are_refused(checkpointer: Callable[[], Checkpointer]) -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(Unsavable, match=r"model.weight is on the meta device"):
        checkpointer().save(1, {"model": {"weight": model.weight}})


def test_a_schedule_of_several_goes_on_through_its_milestones(checkpointer: Callable[[], Checkpointer]) -> None:
    """MultiStepLR has a Counter, of which it wants more than a dictionary can do."""

    def made() -> dict[str, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        parts = [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.MultiStepLR(optimizer, [2, 4])]
        return {"optim": optimizer, "schedule": lr_scheduler.SequentialLR(optimizer, parts, milestones=[3])}

    state, saver = made(), checkpointer()
    state["optim"].step()
    state["schedule"].step()
    saver.save(1, state | {"seen": Counter({3: 1})}, durable=True)
    saver.wait()
    again = made() | {"seen": None}
    assert checkpointer().restore(again) == 1
    assert type(again["seen"]) is Counter
    for _ in range(8):
        for each in (state, again):
            each["optim"].step()
            each["schedule"].step()
        assert state["schedule"].get_last_lr() == again["schedule"].get_last_lr()


class Remembers(nn.Linear):  # type: ignore[misc]
    """With a state beside its tensors which is another object each time."""

    def get_extra_state(self) -> tuple[torch.Tensor, ...]:
        return (torch.arange(3), torch.ones(2))

    def set_extra_state(self, state: tuple[torch.Tensor, ...]) -> None:
        self.found = state


def test_what_a_model_has_beside_its_tensors_is_saved(checkpointer: Callable[[], Checkpointer]) -> None:
    saver, model = checkpointer(), Remembers(2, 2)
    saver.save(1, {"model": Remembers(2, 2)}, durable=True)
    saver.wait()
    assert checkpointer().restore({"model": model}) == 1
    assert torch.equal(model.found[0], torch.arange(3))


def trained(*sizes: int, groups: int = 1, lr: float = 0.1) -> dict[str, Any]:
    """A model of some layers, trained for a step, with its optimizer."""
    model = nn.Sequential(*(nn.Linear(size, 2) for size in sizes))
    split = [[each for layer in model[number::groups] for each in layer.parameters()] for number in range(groups)]
    optimizer = torch.optim.Adam([{"params": each, "lr": lr * (n + 1)} for n, each in enumerate(split)])
    sum(layer(torch.ones(1, layer.in_features)).sum() for layer in model).backward()
    optimizer.step()
    return {"model": model, "optim": optimizer}


@pytest.mark.parametrize(
    ("saved", "given", "said"),
    [
        ({"sizes": (2, 2, 2)}, {"sizes": (2, 2)}, r"it has model\.2\.\w+ \(and 1 more\), for which there is no place"),
        ({"sizes": (2, 2)}, {"sizes": (2, 2, 2)}, r"it has no model\.2\.\w+ \(and 1 more\)"),
        ({"sizes": (2, 2), "groups": 2}, {"sizes": (2, 2)}, r"it has optim\.param_groups\.1\..* no place"),
        ({"sizes": (2, 2)}, {"sizes": (2, 2), "groups": 2}, r"it has no optim\.param_groups\.1\."),
    ],
)
def test_a_state_that_is_not_like_the_one_that_was_saved_is_refused(
    checkpointer: Callable[[], Checkpointer], saved: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    saver = checkpointer()
    saver.save(1, trained(*saved.pop("sizes"), **saved))
    state = trained(*given.pop("sizes"), **given)
    before = state["model"][0].weight.clone()
    with pytest.raises(ValueError, match=said) as caught:
        saver.restore(state)
    assert "strict=False loads what both have" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert torch.equal(state["model"][0].weight, before)


def test_what_both_have_is_loaded_where_that_is_meant(checkpointer: Callable[[], Checkpointer]) -> None:
    saver = checkpointer()
    saved = trained(2, 2, lr=0.5)
    saver.save(1, saved)
    more, fewer = trained(2, 2, 2), trained(2)
    own = more["model"][2].weight.clone()
    assert saver.restore(more, strict=False) == 1
    assert torch.equal(more["model"][1].weight, saved["model"][1].weight)
    assert torch.equal(more["model"][2].weight, own)
    assert more["optim"].param_groups[0]["lr"] == 0.5
    assert saver.restore(fewer, strict=False) == 1
    assert torch.equal(fewer["model"][0].weight, saved["model"][0].weight)
    first, again = (each["optim"].state_dict()["state"] for each in (saved, fewer))
    assert torch.equal(first[0]["exp_avg"], again[0]["exp_avg"])


def test_another_dtype_is_refused_unless_it_is_meant(checkpointer: Callable[[], Checkpointer]) -> None:
    saver = checkpointer()
    saver.save(1, {"model": nn.Linear(2, 2)})
    state = {"model": nn.Linear(2, 2, dtype=torch.bfloat16)}
    with pytest.raises(ValueError, match=r"it has model\.\w+ as torch.float32, and not as torch.bfloat16"):
        saver.restore(state)
    assert saver.restore(state, strict=False) == 1


def test_a_sharded_tensor_in_a_tuple_is_refused(tmp_path: Path) -> None:
    """It would come back as rank 0's part on every rank."""

    def body(rank: int) -> list[str]:  # noqa: ARG001
        part = DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (1,)))
        said = []
        for value in ((part,), {"y": (1, {"z": part})}, [1, (part, 2)]):
            with pytest.raises(Unsavable) as caught:
                Checkpointer(tmp_path / "ck").save(1, {"x": value})
            said.append(str(caught.value))
        return said

    for said in on_ranks(1, body, tmp_path)[0]:
        assert "has a sharded tensor within a tuple or an object" in said
        assert "put it into lists and dictionaries only" in said


class NeedsAClosure(torch.optim.SGD):  # type: ignore[misc]
    def step(self, closure: Callable[[], torch.Tensor]) -> None:
        closure()
        super().step()


@pytest.mark.parametrize("kind", [torch.optim.SparseAdam, NeedsAClosure])
def test_optimizers_that_cannot_be_stepped_alone_go_on(
    checkpointer: Callable[[], Checkpointer], kind: type[torch.optim.Optimizer]
) -> None:
    """They were saved, and each restore failed."""
    more = {"momentum": 0.9} if kind is NeedsAClosure else {}

    def made(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = nn.Embedding(5, 2, sparse=kind is torch.optim.SparseAdam)
        return {"model": model, "optim": kind(model.parameters(), lr=0.1, **more)}

    def trained(state: dict[str, Any]) -> None:
        def closure() -> torch.Tensor:
            state["optim"].zero_grad()
            loss: torch.Tensor = state["model"](torch.tensor([0, 3])).square().sum()
            loss.backward()
            return loss

        state["optim"].step(closure)

    state, saver = made(0), checkpointer()
    trained(state)
    saver.save(1, state)
    again = made(1)
    assert saver.restore(again) == 1
    for each in (state, again):
        trained(each)
    assert equal(again, state)


def test_a_tensor_whose_elements_share_memory_is_restored_or_refused(checkpointer: Callable[[], Checkpointer]) -> None:
    saver = checkpointer()
    saver.save(1, {"x": torch.arange(3).expand(2, 3)})
    state = {"x": torch.zeros(3, dtype=torch.int64).expand(2, 3)}
    assert saver.restore(state) == 1
    assert state["x"].tolist() == [[0, 1, 2]] * 2
    model = nn.Linear(1, 1)
    model.register_buffer("positions", torch.arange(3).expand(1, 3))  # nothing is shared
    assert checkpointer().save(1, {"model": model})
    model.register_buffer("mask", torch.arange(3).expand(2, 3))
    with pytest.raises(ValueError, match=r"model.mask is expanded, .* clone\(\)"):
        checkpointer().save(1, {"model": model})


@pytest.mark.parametrize("state", [None, [1], "model", nn.Linear(1, 1)])
def test_a_state_that_is_no_dictionary_is_refused(checkpointer: Callable[[], Checkpointer], state: Any) -> None:
    with pytest.raises(TypeError, match="the state must be a dictionary"):
        checkpointer().restore(state)
    with pytest.raises(TypeError, match="the state must be a dictionary"):
        checkpointer().save(1, lambda: state)


def test_fsdp_without_a_device_mesh_is_refused_in_one_line(tmp_path: Path) -> None:
    def body(rank: int) -> None:  # noqa: ARG001
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
            Checkpointer(tmp_path / "ck").save(1, {"model": model})

    for error in on_ranks(2, body, tmp_path):
        assert isinstance(error, ValueError)
        assert str(error).startswith("model is sharded by FSDP without a device mesh")


def test_dictionaries_stay_of_their_kinds(checkpointer: Callable[[], Checkpointer]) -> None:
    saver = checkpointer()
    some = {
        "o": OrderedDict(b=1, a=torch.ones(1)),
        "d": defaultdict(list, a=[1]),
        "c": Counter(x=3),
        "n": [Counter(y=1)],
    }
    saver.save(1, {"x": some})
    state: dict[str, Any] = {
        "x": {"o": OrderedDict(), "d": defaultdict(list), "c": Counter(), "n": [Counter()], "gone": 1}
    }
    assert saver.restore(state) == 1
    assert [type(each) for each in state["x"].values()] == [OrderedDict, defaultdict, Counter, list]
    assert (list(state["x"]["o"]), state["x"]["d"]["new"], state["x"]["c"]["none"]) == (["b", "a"], [], 0)
    assert type(state["x"]["n"][0]) is Counter


def test_a_key_that_means_something_else_in_a_checkpoint_is_refused(checkpointer: Callable[[], Checkpointer]) -> None:
    with pytest.raises(ValueError, match=r"x has a key '\(keys\)'"):
        checkpointer().save(1, {"x": {"(keys)": 1, "y": 2}})
