"""A node's part in a check: real processes, ended in time, whose words are put together."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jobs import free_port
from launches import launch
from made_up_plugin import install
from outlast.agent.monitoring.checker import Checker
from outlast.launch import Endpoint
from outlast.protocol.checks import Findings, Probe
from outlast.settings.settings import Settings

LAUNCH = launch(job="check", role="check", command=(), entrypoint="check", endpoint=Endpoint("127.0.0.1", 0))


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    place = tmp_path / "plugin"
    place.mkdir()
    monkeypatch.setenv("PYTHONPATH", install(place)["PYTHONPATH"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return monkeypatch


def examine(probe: Probe, nproc: int = 1, **settings: Any) -> Findings:
    """Carry out one probe, without a zygote."""

    async def once() -> Findings:
        found: asyncio.Future[Findings] = asyncio.get_running_loop().create_future()
        given = Settings(accelerator="made-up", **settings)
        checker = Checker(replace(LAUNCH, nproc=nproc), given, zygote=lambda: None, found=found.set_result)
        assert checker.begin(probe)
        assert not checker.begin(probe), "the same one again"
        try:
            return await asyncio.wait_for(found, 300)
        finally:
            await checker.stop()

    return asyncio.run(once())


def alone(limit: float = 60.0, size: int = 1) -> Probe:
    return Probe(1, 1, 0, size, "127.0.0.1", free_port(), limit)


@pytest.mark.usefixtures("made_up")
def test_a_good_node_gives_figures_and_facts(tmp_path: Path) -> None:
    found = examine(alone(size=2), nproc=2, check_path=str(tmp_path))
    assert (found.alone, found.together) == ("", "")
    assert set(found.figures) == {"compute", "memory", "disk", "local"}
    assert found.facts["made-up"] == "1"
    assert found.wall > 0
    assert [path.name for path in tmp_path.iterdir()] == ["plugin"]


def test_a_process_that_is_killed_is_this_node_s_own_fault(made_up: pytest.MonkeyPatch) -> None:
    made_up.setenv("MADE_UP_MOOD", "dies")
    found = examine(alone())
    assert found.alone == "its check was killed by signal 9 in phase compute"
    assert not found.certain


def test_what_libraries_print_takes_nothing_away(made_up: pytest.MonkeyPatch) -> None:
    made_up.setenv("MADE_UP_MOOD", "prints")
    found = examine(alone())
    assert (found.alone, set(found.figures)) == ("", {"compute", "memory"})


@pytest.mark.usefixtures("made_up")
def test_what_cannot_be_started_is_found_at_once(tmp_path: Path) -> None:
    found = examine(alone(), check_path=f"{tmp_path}/\udcff")  # a name that is no text
    assert found.alone.startswith("its check cannot be started: ")


def test_a_device_that_is_ill_by_its_own_word_is_faulty_for_certain(made_up: pytest.MonkeyPatch) -> None:
    made_up.setenv("MADE_UP_MOOD", "ill")
    found = examine(alone())
    assert found.alone.startswith("health: cpu ")
    assert found.certain


@pytest.mark.usefixtures("made_up")
def test_partners_that_do_not_come_are_not_this_node_s_fault() -> None:
    found = examine(alone(limit=10.0, size=2))
    assert found.alone == ""
    assert found.together
    assert found.figures["compute"] > 0


def test_a_phase_that_takes_too_long_is_ended(made_up: pytest.MonkeyPatch) -> None:
    made_up.setenv("MADE_UP_MOOD", "slow")
    found = examine(alone(limit=4.0))
    assert re.fullmatch("it took more than 4 s (for compute|in all, and was at compute)", found.alone)
