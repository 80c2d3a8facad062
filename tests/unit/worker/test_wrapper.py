"""nvidia-resiliency-ext's names; with real jobs: tests/integration/test_wrapped_function.py."""

from __future__ import annotations

import logging

import pytest

import outlast
from outlast.worker.wrapper import WrapperState


def test_without_a_launcher_the_function_is_called_once_after_initialize() -> None:
    seen: list[WrapperState] = []

    @outlast.Wrapper(initialize=seen.append)
    def train(x: int, call: outlast.CallWrapper | None = None) -> tuple[int, int]:
        assert call is not None
        call.ping()
        return x, call.iteration

    assert train(3) == (3, 0)
    assert [(each.rank, each.world_size, each.initial_rank) for each in seen] == [(0, 1, 0)]


def test_what_has_no_effect_is_named_with_what_there_is_instead(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "outlast"):
        outlast.Wrapper(soft_timeout=60, rank_assignment=None)
    (line,) = caplog.messages
    assert "soft_timeout (instead: --ft-rank-heartbeat-timeout)" in line
    assert "rank_assignment (instead: --nnodes=MIN:MAX)" in line


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="no argument retries"):
        outlast.Wrapper(retries=3)


def test_a_wrapper_that_is_not_enabled_changes_nothing() -> None:
    def train() -> None: ...

    assert outlast.Wrapper(enabled=False)(train) is train
