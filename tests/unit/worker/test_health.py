"""Health checks: everybody comes, or everybody learns who did not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore, TCPStore

from outlast.worker import health
from outlast.worker.health import HealthChecks, RanksMissing

SIZE = 3
GENEROUS = 60.0
SHORT = 0.2


@pytest.fixture(params=[HashStore, lambda: TCPStore("127.0.0.1", 0, is_master=True)], ids=["memory", "network"])
def ranks(request: pytest.FixtureRequest) -> list[HealthChecks]:
    make: Callable[[], object] = request.param
    store = make()
    return [HealthChecks(store, rank, SIZE, where=f"host-{rank}", ranks_per_node=2) for rank in range(SIZE)]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(SIZE) as threads:
        yield threads


def test_when_all_come_nothing_happens_round_after_round(ranks: list[HealthChecks], pool: ThreadPoolExecutor) -> None:
    for _ in range(5):
        for result in [pool.submit(each.check, GENEROUS) for each in ranks]:
            result.result(GENEROUS)


def test_nobody_leaves_before_all_have_come(ranks: list[HealthChecks], pool: ThreadPoolExecutor) -> None:
    early = [pool.submit(each.check, GENEROUS) for each in ranks[:2]]
    waiting = threading.Event()
    while not ranks[2].store.check([f"{health.PREFIX}/rank/1"]):
        waiting.wait(0.01)
    assert not any(each.done() for each in early)
    ranks[2].check(GENEROUS)
    for each in early:
        each.result(GENEROUS)


def test_a_rank_that_does_not_come_is_named_with_its_node(ranks: list[HealthChecks], pool: ThreadPoolExecutor) -> None:
    for result in [pool.submit(each.check, GENEROUS) for each in ranks]:
        result.result(GENEROUS)
    patient = pool.submit(ranks[2].check, GENEROUS)
    here = f"{health.PREFIX}/rank/2"
    while json.loads(ranks[2].store.get(here))[0] < 2:  # it has come, however late its thread began
        threading.Event().wait(0.01)
    hasty = pool.submit(ranks[0].check, SHORT)
    for result, limit in ((hasty, "0.2"), (patient, "60")):  # one has waited in vain, and all learn of it
        said = rf"^rank 1 \(host-1\) did not come to the health check within {limit} s$"
        with pytest.raises(RanksMissing, match=said):
            result.result(GENEROUS)


def test_a_rank_that_never_came_is_guessed_by_its_place(ranks: list[HealthChecks]) -> None:
    with pytest.raises(RanksMissing) as caught:
        ranks[0].check(SHORT)
    assert caught.value.missing == {1: "node 0", 2: "node 1"}
    assert str(caught.value).startswith("ranks 1 (node 0), 2 (node 1) did not come")


def test_a_rank_that_comes_too_late_learns_that_it_was_missed(ranks: list[HealthChecks]) -> None:
    for each in ranks[:2]:
        with pytest.raises(RanksMissing):
            each.check(SHORT)
    with pytest.raises(RanksMissing) as caught:
        ranks[2].check(GENEROUS)
    assert 2 in caught.value.missing


def test_what_earlier_rounds_left_in_the_store_is_removed(ranks: list[HealthChecks], pool: ThreadPoolExecutor) -> None:
    for _ in range(4):
        for result in [pool.submit(each.check, GENEROUS) for each in ranks]:
            result.result(GENEROUS)
    store = ranks[0].store
    assert [store.check([f"{health.PREFIX}/{number}/door"]) for number in range(1, 5)] == [False, False, False, True]


def test_without_a_process_group_nothing_happens() -> None:
    health.health_check(timeout=SHORT)
