"""Who decides about a failure: the user's rules and extension, and what happens when those do not."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast import FailoverStrategy, FailureInfo, rulebook
from outlast.agent.postmortem.extension import Extension
from outlast.cli.request import parse
from outlast.core.recovery.strategy import Rule, When, decide
from outlast.platforms.plugins import COMMAND, Alarm, Faulty, Plugins
from outlast.protocol.failures import Account, Failure, ReportedCause

CAUSE = ReportedCause("disk-full", "the disk is full", domain="storage", outlook="may help")
ACCOUNT = Account(exception="OSError", said="[Errno 28] No space left", tail=("writing /ckpt/1",), step=3)
FAILURE = Failure("node-7", "h", 3, 1, 77, 1, 0.0, "", cause=CAUSE, account=ACCOUNT)
INFO = FailureInfo.of(FAILURE, job="j", generation=1, restarts=0)


# -- rules


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({"cause": "disk-full"}, True),
        ({"cause": "disk-*", "domain": "storage", "outlook": "may help", "role": "root"}, True),
        ({"cause": ["quota", "disk-full"]}, True),
        ({"cause": "quota"}, False),
        ({"cause": "disk-full", "domain": "gpu"}, False),
        ({"exception": "OSError", "node": "node-?"}, True),
        ({"exit_code": 1, "rank": [2, 3]}, True),
        ({"exit_code": -9}, False),
        ({"message": r"Errno \d+"}, True),
        ({"message": "writing /ckpt"}, True),
        ({"message": "GPU"}, False),
        ({"restarts": 2}, True),
        ({"restarts": 3}, False),
        ({"stepped": True}, True),
        ({"stepped": False}, False),
    ],
)
def test_a_rule_holds_if_all_that_it_says_is_so(when: dict[str, Any], holds: bool) -> None:
    rules = [Rule(when=msgspec.convert(when, When), then=FailoverStrategy.ABORTION)]
    decided = decide(FAILURE, FailoverStrategy.NORMAL, rules, restarts=2)
    assert decided == ((FailoverStrategy.ABORTION, "rule 1") if holds else (FailoverStrategy.NORMAL, ""))


def test_the_first_rule_that_holds_decides_and_else_the_cause_does(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "- {when: {cause: quota}, then: abortion}\n"
        "- {when: {domain: storage}, then: node}\n"
        "- {when: {cause: disk-full}, then: global}\n"
    )
    rules = rulebook.read(str(path))
    assert decide(FAILURE, FailoverStrategy.NORMAL, rules) == (FailoverStrategy.NODE, "rule 2")
    assert decide(FAILURE, FailoverStrategy.NODE, rules[:1]) == (FailoverStrategy.NODE, "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("then: node", "must hold a list of rules"),
        ("- {when: {cause: x}}", "rule 1: Object missing required field `then`"),
        ("- {when: {cause: x}, then: pray}", "rule 1: Invalid enum value 'pray'"),
        ("- {when: {cuase: x}, then: node}", "rule 1: Object contains unknown field `cuase`"),
        ("- {when: {}, then: node}", "rule 1: `when` says nothing"),
        ("- {when: {message: '('}, then: node}", "rule 1: message '(' is not a regular expression"),
    ],
)
def test_bad_rules_are_refused_at_the_start_in_one_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(ValueError) as refused:
        parse([f"--ft-failover-rules={tmp_path}/rules.yaml", str(tmp_path / "train.py")], {"PATH": "/usr/bin"})
    assert str(refused.value).startswith(f"{tmp_path}/rules.yaml: {says}")


# -- the extension

MODULE = """
import os, time, outlast
class Base(outlast.FailoverExtension):
    def get_user_failover_strategy(self, failure_info):
        print("seen:", failure_info.cause, failure_info.exception, failure_info.default.name)
        return self.answer(failure_info)
class Decides(Base):
    def answer(self, info): return outlast.FailoverStrategy.NODE if info.step == 3 else None
class Abstains(Base):
    def answer(self, info): return None
class Slow(Base):
    def answer(self, info): time.sleep(600)
class Raises(Base):
    def answer(self, info): raise KeyError("mine")
class Dies(Base):
    def answer(self, info): os._exit(7)
class Wrong(Base):
    def answer(self, info): return "NODE"
class Other: pass
class Unmade(Base):
    def __init__(self): raise OSError("no service")
"""


def asked(name: str, place: Path, limit: float = 30.0, times: int = 1) -> list[FailoverStrategy | None]:
    """What the extension of this name answers."""
    (place / "ext.py").write_text(MODULE)

    async def ask() -> list[FailoverStrategy | None]:
        extension = Extension(f"ext::{name}", beside=str(place), limit=limit)
        try:
            await extension.start()
            return [await extension.ask(INFO) for _ in range(times)]
        finally:
            extension.close()

    return asyncio.run(ask())


def test_an_extension_decides_if_it_wants_to(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert asked("Decides", tmp_path, times=2) == [FailoverStrategy.NODE] * 2
    assert asked("Abstains", tmp_path) == [None]
    out, err = capfd.readouterr()
    assert "seen: disk-full OSError NORMAL" in err
    assert not out


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Slow", "did not answer within 0.5 s (extension_timeout)"),
        ("Raises", "raised KeyError: 'mine'"),
        ("Dies", "ended without an answer"),
        ("Wrong", "returned 'NODE', which is not a FailoverStrategy"),
    ],
)
def test_one_that_does_not_is_reported_and_the_default_stands(
    name: str, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("agent"), "propagate", True)
    # Each time anew: one that died has another process for the next question.
    limit = 0.5 if name == "Slow" else 30.0
    assert asked(name, tmp_path, limit=limit, times=2 if name == "Dies" else 1)[-1] is None
    assert says in caplog.text
    assert "what would be done without it is done" in caplog.text


def test_nobody_waits_for_one_that_is_closed(tmp_path: Path) -> None:
    (tmp_path / "ext.py").write_text(MODULE)

    async def ask() -> FailoverStrategy | None:
        extension = Extension("ext::Slow", beside=str(tmp_path), limit=600.0)
        await extension.start()
        asking = asyncio.ensure_future(extension.ask(INFO))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(extension.close)
        return await asyncio.wait_for(asking, 60.0)

    assert asyncio.run(ask()) is None


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nowhere::Mine", "ModuleNotFoundError: No module named 'nowhere'"),
        ("ext::Missing", "module ext has no Missing"),
        ("ext::Other", "Other is not a subclass of outlast.FailoverExtension"),
        ("ext::Unmade", "OSError: no service"),
        ("broken::Mine", "SyntaxError"),
    ],
)
def test_one_that_cannot_be_is_refused_at_the_start(reference: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "ext.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("def (")

    async def start() -> None:
        await Extension(reference, beside=str(tmp_path), limit=1.0).start()

    with pytest.raises(ValueError, match=f"dynamic_failover_extension {reference}: .*{says}"):
        asyncio.run(start())


@pytest.mark.parametrize("flag", ["--dynamic_failover_extension", "--dynamic-failover-extension"])
def test_what_is_no_reference_is_refused_with_the_flag(flag: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(ValueError, match=f"{flag} must be package.module::Class, not 'a.b.C'"):
        parse([flag, "a.b.C", str(tmp_path / "train.py")], {"PATH": "/usr/bin"})


# -- plug-ins

PLUGIN = """
import outlast
class Cluster(outlast.Platform):
    def cordon(self, faulty): print("cordon", faulty.node, faulty.reason, flush=True)
class Broken(outlast.ErrorMonitor):
    def alarm(self, alarm): raise OSError("no pager")
class Pager(outlast.ErrorMonitor):
    def alarm(self, alarm): print("alarm", alarm.cause, alarm.text, flush=True)
"""


def install(place: Path) -> None:
    (place / "plug.py").write_text(PLUGIN)
    info = place / "plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: plug\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[outlast.platforms]\nmine = plug:Cluster\n"
        "[outlast.error_monitors]\na = plug:Broken\nb = plug:Pager\nc = plug:Cluster\n"
    )


def test_plug_ins_hear_of_faulty_nodes_and_failures_and_a_broken_one_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins = Plugins()
    plugins.tell(Alarm("j", "a", 3, "disk-full", "restart 1 of 3"))
    plugins.tell(Faulty("j", "b", "the GPU is gone", 60.0))
    plugins.close()
    out, err = capfd.readouterr()
    assert out.splitlines() == ["alarm disk-full restart 1 of 3", "cordon b the GPU is gone"]
    assert "outlast plug-ins: a failed" in err
    assert "no pager" in err
    assert "plug:Cluster is not a subclass of outlast.ErrorMonitor" in err


def test_without_plug_ins_no_process_is_started() -> None:
    plugins = Plugins()
    plugins.tell(Faulty("j", "b", "the GPU is gone", 60.0))
    assert plugins._process is None
    plugins.close()


def test_plug_ins_end_when_the_coordinator_does() -> None:
    ended = subprocess.run(COMMAND, stdin=subprocess.DEVNULL, timeout=60)
    assert ended.returncode == 0
