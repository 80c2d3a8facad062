"""Node names as places: one living agent each, released by the kernel, whatever happens to the agent."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from outlast.agent.processes.place import Place, hold
from processes import Process, await_exit, python

HOLDER = """
import signal, sys
from outlast.agent.processes.place import hold
place = hold(sys.argv[1], sys.argv[2], given=False)
print("has", place.name, place.key, flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def places() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def take(places: ExitStack, name: str, *, job: str = "job", given: bool = False) -> Place:
    place = hold(job, name, given=given)
    places.callback(place.close)
    return place


def another_agent(name: str, job: str = "job") -> Process:
    return Process([python(), "-c", HOLDER, job, name])


def test_agents_on_one_machine_get_names_of_their_own(places: ExitStack) -> None:
    taken = [take(places, "gpu-07") for _ in range(4)]
    assert [place.name for place in taken] == ["gpu-07", "gpu-07.2", "gpu-07.3", "gpu-07.4"]
    assert all(place.held for place in taken)
    assert len({place.key for place in taken}) == 4


def test_a_place_that_was_let_go_is_taken_again_first(places: ExitStack) -> None:
    first, second = take(places, "host"), take(places, "host")
    key = first.key
    first.close()
    assert not first.held
    again = take(places, "host")
    assert (again.name, again.key) == ("host", key)
    assert second.held


def test_a_name_that_the_user_gave_is_held_or_refused_never_changed(places: ExitStack) -> None:
    assert take(places, "a", given=True).name == "a"
    with pytest.raises(ValueError, match="node name 'a' is taken: another agent of job job") as caught:
        take(places, "a", given=True)
    assert "\n" not in str(caught.value)
    assert "--ft-node-name" in str(caught.value)


def test_other_jobs_have_the_same_names(places: ExitStack) -> None:
    one, other = take(places, "host", job="one"), take(places, "host", job="other")
    assert (one.name, other.name) == ("host", "host")
    assert one.key != other.key


def test_job_and_name_are_not_mistaken_for_each_other(places: ExitStack) -> None:
    assert take(places, "b", job="a", given=True).key != take(places, "", job="ab", given=True).key


def test_an_agent_that_was_killed_leaves_its_place_to_the_next_life(places: ExitStack) -> None:
    with another_agent("host") as agent:
        name, key = agent.wait_for(r"has (\S+) (\S+)").groups()
        assert name == "host"
        assert take(places, "host").name == "host.2"
        agent.signal(signal.SIGKILL)
        agent.wait()
    again = take(places, "host", given=True)
    assert (again.name, again.key) == ("host", key)


def test_a_stopped_agent_still_has_its_place(places: ExitStack) -> None:
    with another_agent("host") as agent:
        agent.wait_for("has host ")
        agent.signal(signal.SIGSTOP)
        with pytest.raises(ValueError, match="is taken"):
            take(places, "host", given=True)


def test_processes_that_an_agent_starts_do_not_have_its_place(places: ExitStack) -> None:
    """Neither when it lets go of it nor, as here, when it is killed and they are not."""
    start = 'subprocess.Popen([sys.executable, "-c", "print(\'up\', flush=True); input()"], close_fds=False)'
    holder = HOLDER.replace("signal.pause()", f"import subprocess\n{start}\nsignal.pause()")
    with Process([python(), "-c", holder, "job", "host"], stdin=subprocess.PIPE) as agent:
        agent.wait_for("has host ")
        agent.wait_for("up")
        agent.signal(signal.SIGKILL)
        assert not await_exit([agent.pid], 120)
        assert take(places, "host").name == "host"


def test_names_may_be_anything_that_a_user_may_write(places: ExitStack) -> None:
    for name in ("../../x", "a/b", "ä", "x" * 255, "a b", "-", "\udc80"):
        assert take(places, name, job="job/../" + "y" * 255, given=True).held


def test_however_many_there_were_one_empty_file_is_left(tmp_path: Path) -> None:
    for number in range(20):
        hold(f"job {number}", "host", given=False).close()
    (left,) = (tmp_path / f"outlast-{os.getuid()}").iterdir()
    assert left.name == "places"
    assert left.stat().st_size == 0


def test_agents_that_start_at_the_same_time_never_share_a_name() -> None:
    with ExitStack() as agents:
        started = [agents.enter_context(another_agent("host")) for _ in range(6)]
        names = [agent.wait_for(r"has (\S+)")[1] for agent in started]
    assert sorted(names) == ["host", *(f"host.{number}" for number in range(2, 7))]


def test_without_a_directory_the_name_is_as_it_was_and_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    for given in (False, True):
        place = hold("job", "host", given=given)
        assert (place.name, place.held, place.key) == ("host", False, "")
        place.close()


def test_a_directory_that_others_can_write_to_is_not_trusted(places: ExitStack, tmp_path: Path) -> None:
    open_to_all = tmp_path / f"outlast-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert take(places, "host").held
    assert list(open_to_all.iterdir()) == []


def test_agents_that_cannot_see_each_other_have_the_same_name_but_not_the_same_place(
    places: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another temporary directory, or when somebody has removed the file in this one."""
    one = take(places, "host")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    other = take(places, "host")
    (tmp_path / "other" / f"outlast-{os.getuid()}" / "places").unlink()
    third = take(places, "host")
    assert [place.name for place in (one, other, third)] == ["host"] * 3
    assert len({place.key for place in (one, other, third)}) == 3
