"""Extensions as their process loads them: DLRover's, and those that name a strategy that does not exist."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import msgspec
import pytest

from outlast.agent.postmortem.extension_process import answer, load
from outlast.failover import FailureInfo
from outlast.protocol.failures import Account, Failure

# As in DLRover's tutorial, with its import lines changed.
FROM_DLROVER = """
from outlast.dlrover import AgentFailureInfo, DynamicAgentFailoverExtension, FailoverStrategy


class TestDynamicFailoverExtension(DynamicAgentFailoverExtension):
    def get_user_failover_strategy(self, failure_info: AgentFailureInfo) -> FailoverStrategy:
        if "broken link" in failure_info.log_content and failure_info.node_rank == 3:
            return FailoverStrategy.NODE_FAILOVER
        if "restart all" in failure_info.log_content:
            return FailoverStrategy.GLOBAL_FAILOVER
        if "no licence" in failure_info.log_content:
            return FailoverStrategy.ABORTION_FAILOVER
        return FailoverStrategy.NORMAL_FAILOVER
"""


@pytest.fixture
def extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "user_failover", raising=False)
    importlib.invalidate_caches()
    return tmp_path / "user_failover.py"


def told(said: str) -> bytes:
    failure = Failure("a", "h", 6, 0, 1, 1, 1700000000.5, "", account=Account(said=said))
    return msgspec.json.encode(FailureInfo.of(failure, job="j", generation=1, restarts=0, node_rank=3))


@pytest.mark.parametrize(
    ("said", "strategy"),
    [("broken link", "node"), ("restart all", "global"), ("no licence", "abortion"), ("anything", None)],
)
def test_an_extension_of_dlrovers_works_after_its_import_line_is_changed(
    extension: Path, said: str, strategy: str | None
) -> None:
    extension.write_text(FROM_DLROVER)
    loaded = load("user_failover::TestDynamicFailoverExtension")
    assert answer(loaded, told(said)) == {"strategy": strategy}


def test_what_dlrover_tells_is_told() -> None:
    from outlast.dlrover import AgentFailureInfo

    seen = AgentFailureInfo.of(msgspec.json.decode(told("out of luck"), type=FailureInfo))
    assert (seen.node_rank, seen.timestamp, seen.extra_info) == (3, 1700000000, {})
    assert json.loads(seen.log_content)["0"]["message"] == "out of luck"


@pytest.mark.parametrize("place", ["outlast", "outlast.dlrover"])
def test_a_strategy_that_does_not_exist_is_refused_when_the_extension_is_loaded(extension: Path, place: str) -> None:
    text = FROM_DLROVER.replace("outlast.dlrover", place).replace("GLOBAL_FAILOVER", "GLOBAL_FAILVER")
    if place == "outlast":
        text = text.replace("AgentFailureInfo", "FailureInfo").replace("DynamicAgentFailover", "Failover")
        text = text.replace("_FAILOVER", "")
    extension.write_text(text)
    with pytest.raises(ValueError, match=r"line 10: there is no FailoverStrategy\.GLOBAL_FAILVER; there are: NORMAL"):
        load("user_failover::TestDynamicFailoverExtension")
