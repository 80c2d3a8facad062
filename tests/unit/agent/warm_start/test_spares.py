"""Workers-to-be, one for each rank: what they become is what a fork would have become.

There is no GPU here: using it is left out of them, and all else is real.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_zygote import DEADLINE, Nursery, agent  # noqa: F401  (agent: a fixture for all tests here)

from outlast.agent.warm_start.spares import Spares
from outlast.agent.warm_start.zygote_process import ZygoteProcess
from processes import alive

SCRIPT = """
import json, os, sys
facts = {"pid": os.getpid(), "leader": os.getsid(0) == os.getpid(), "rank": os.environ["RANK"], "argv": sys.argv[1:]}
print(json.dumps(facts | {"main": __name__, "warm": "OUTLAST_STARTUP" in os.environ}))
"""


def spare_nursery(
    body: Callable[[Nursery], Coroutine[Any, Any, None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run `body` with a zygote that keeps two spares, which use no GPU."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    nothing = {"modules": [], "preload": [], "beside": ""}
    monkeypatch.setattr(ZygoteProcess, "warm", lambda self, _device: self.learn(nothing))

    async def run() -> None:
        made = Nursery([sys.executable, "-u", str(script), "one"], spares=2)
        try:
            await made.ready()
            await body(made)
        finally:
            made.zygote.close()

    asyncio.run(run())


async def until(made: Nursery, reached: Callable[[Spares], bool]) -> Spares:
    """The spares, once this is so: every word of theirs is noticed."""
    spares, heard = made.zygote._spares, asyncio.Event()
    assert spares is not None
    hear, stock = spares._hear, spares.stock

    def and_tell(do: Callable[[ZygoteProcess], None], process: ZygoteProcess) -> None:
        do(process)
        heard.set()

    spares._hear = partial(and_tell, hear)  # type: ignore[method-assign]
    spares.stock = partial(and_tell, stock)  # type: ignore[method-assign]
    for spare in [*spares._ready, *spares._coming]:
        asyncio.get_running_loop().add_reader(spare.link, spares._hear, spare)
    while not reached(spares):
        heard.clear()
        await asyncio.wait_for(heard.wait(), DEADLINE)
    spares._hear, spares.stock = hear, stock  # type: ignore[method-assign]
    return spares


async def spares_of(made: Nursery) -> list[int]:
    """The pids of the spares, once they are ready."""
    spares = await until(made, lambda spares: len(spares._ready) == 2)
    return [spare.pid for spare in spares._ready]


def test_spares_become_the_workers_and_there_are_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(made: Nursery) -> None:
        before = await spares_of(made)
        ends = await made.run(made.command, made.command)
        facts = [json.loads(end.output) for end in ends]
        assert [each["pid"] for each in facts] == before
        wanted = {"leader": True, "argv": ["one"], "main": "__main__", "warm": False}
        assert facts == [{"pid": pid, "rank": str(rank), **wanted} for rank, pid in enumerate(before)]
        assert [(end.code, end.errors) for end in ends] == [(0, "")] * 2
        after = await spares_of(made)
        assert not set(after) & set(before)

    spare_nursery(body, tmp_path, monkeypatch)


def test_they_are_there_until_those_of_a_zygote_that_knows_more_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(made: Nursery) -> None:
        before = await spares_of(made)
        spares, serving = made.zygote._spares, made.zygote._serving
        assert spares is not None
        assert serving is not None
        spares.stock(serving)  # whose they are: nothing to do
        assert not spares._coming
        another = serving.successor()
        spares.stock(another)
        assert [spare.pid for spare in spares._ready] == before
        after = await until(made, lambda spares: not spares._coming)
        assert not {spare.pid for spare in after._ready} & set(before)
        assert not any(map(alive, before))
        another.end()

    spare_nursery(body, tmp_path, monkeypatch)


def test_those_that_died_or_do_not_fit_are_not_used_and_workers_are_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(made: Nursery) -> None:
        before = await spares_of(made)
        (end,) = await made.run(made.command)  # one worker, two spares
        assert json.loads(end.output)["pid"] not in before
        before = await spares_of(made)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # they have looked at another one
        ends = await made.run(made.command, made.command)
        assert not {json.loads(each.output)["pid"] for each in ends} & set(before)
        assert made.forked == 3
        assert "the spare workers are not used: they were made with another CUDA_VISIBLE_DEVICES" in caplog.text

    spare_nursery(body, tmp_path, monkeypatch)


def test_a_file_that_would_be_overshadowed_is_seen_by_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(made: Nursery) -> None:
        before = await spares_of(made)
        (tmp_path / "random.py").write_text("")
        ends = await made.run(made.command, made.command)
        assert not {json.loads(each.output)["pid"] for each in ends} & set(before)
        assert made.forked == 0
        assert "random.py beside the script" in caplog.text
        assert not any(map(alive, before))

    spare_nursery(body, tmp_path, monkeypatch)


def test_they_end_with_the_zygote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    async def body(made: Nursery) -> None:
        pids.extend(await spares_of(made))

    spare_nursery(body, tmp_path, monkeypatch)
    assert len(pids) == 2
    assert not any(map(alive, pids))


def test_without_a_gpu_there_are_none_and_one_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    fake = tmp_path / "fake"
    (fake / "torch").mkdir(parents=True)
    (fake / "torch" / "__init__.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(fake), os.environ.get("PYTHONPATH", "")]))
    script = tmp_path / "script.py"
    script.write_text("")

    async def run() -> None:
        made = Nursery([sys.executable, "-u", str(script)], spares=1)
        try:
            await made.ready()
            for failures in range(1, 4):
                made.zygote._restock()
                await until(made, lambda spares, failures=failures: spares._failures >= failures)  # type: ignore[misc]
        finally:
            made.zygote.close()

    asyncio.run(run())
    assert (
        caplog.text.count("no spare workers with a GPU (--warm-cuda), restarts will be slower: torch sees no CUDA") == 1
    )
