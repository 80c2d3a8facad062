"""Metrics of a job: few series, the ledger's figures, and Prometheus's own tool has nothing to say against them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from outlast.events import events, reasons
from outlast.events.events import JobEvent
from outlast.ledger.reading import RecordedEvent
from outlast.metrics.export import registry, serve, text, write
from outlast.metrics.meter import MOST_SERIES, Meter
from outlast.metrics.tail import EventTail

DEPLOY = Path(__file__).parents[3] / "deploy"
BEGAN: list[tuple[float, JobEvent]] = [
    (0.0, events.JobBegan(generation=0, least=1, most=10_000)),
    *((0.0, events.NodeJoined(generation=0, node=f"n{number}", workers=8)) for number in range(100)),
    (
        1.0,
        events.GenerationFormed(
            generation=1, nodes=tuple(f"n{number}" for number in range(99)), ranks=792, spares=1, restarts=0
        ),
    ),
    (3.0, events.TrainingBegan(generation=1, step=1)),
]
SLOW = events.StragglerChanged(
    generation=1, node="n3", ranks=(24, 25), section="forward", factor=2.0, since=5, over=None, sentence="", excess=0.1
)
ENDING = events.GenerationEnding(generation=1, reason=reasons.FailedRank("n5", 40, 1, cause="out-of-memory"))


def told(*events_: tuple[float, JobEvent], run: str = "r") -> list[RecordedEvent]:
    return [RecordedEvent(1e9 + time, event, "j", run, 1, number) for number, (time, event) in enumerate(events_, 1)]


def exported(meter: Meter, now: float = 1e9 + 100) -> str:
    return text(registry(lambda _: meter.families(now), lambda: {"job": meter.job, "run": meter.run}))


def promtool(*args: str | Path, given: str = "") -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    done = subprocess.run(["promtool", *map(str, args)], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_of_any_size_has_at_most_sixty_series() -> None:
    meter = Meter()
    meter.read(told(*BEGAN, (50.0, SLOW)))
    series = [line for line in exported(meter).splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series)) == MOST_SERIES


def test_seconds_by_state_add_up_to_the_life_of_the_job() -> None:
    meter = Meter()
    meter.read(told(*BEGAN, (60.0, ENDING)))
    values = re.findall(r"^outlast_time_seconds\{.*\} (\S+)$", exported(meter), re.MULTILINE)
    assert sum(map(float, values)) == pytest.approx(100.0)


def test_no_counter_falls_while_events_come() -> None:
    meter, before = Meter(), {}
    story = [
        *BEGAN,
        (60.0, ENDING),
        (61.0, events.WorkersGone(generation=1, step=50)),
        (62.0, events.GenerationFormed(generation=2, nodes=("n1",), ranks=8, spares=0, restarts=1)),
        (64.0, events.TrainingBegan(generation=2, step=21)),
    ]
    for each in told(*story):
        meter.read([each])
        counters = dict(re.findall(r"^(outlast_\w+_total\{.*\}) (\S+)$", exported(meter, each.time), re.MULTILINE))
        assert all(float(counters[name]) >= float(value) for name, value in before.items())
        before = counters
    assert any("steps_lost" in name and float(value) == 30 for name, value in before.items())


def test_a_newer_run_begins_anew_and_an_older_one_does_not_count() -> None:
    meter = Meter()
    newer = [RecordedEvent(each.time + 1000, each.event, "j", "second", 1, each.number) for each in told(*BEGAN)]
    meter.read([*told(*BEGAN), *newer, *told(*BEGAN, run="old")])
    assert meter.run == "second"


def test_labels_that_a_script_chose_are_escaped() -> None:
    meter = Meter()
    evil = events.StragglerChanged(
        generation=1, node='n"\n\\', ranks=(1,), section='a"b\n', factor=2.0, since=5, over=None, sentence=""
    )
    meter.read(told(*BEGAN, (50.0, evil)))
    promtool("check", "metrics", given=exported(meter))


def test_promtool_accepts_the_metrics() -> None:
    meter = Meter()
    meter.read(told(*BEGAN, (50.0, SLOW), (60.0, ENDING)))
    promtool("check", "metrics", given=exported(meter))


def test_promtool_accepts_and_tests_the_alerts() -> None:
    promtool("check", "rules", DEPLOY / "prometheus" / "outlast-alerts.yaml")
    promtool("test", "rules", DEPLOY / "prometheus" / "outlast-alerts-test.yaml")


def test_the_dashboard_asks_only_for_metrics_that_exist(tmp_path: Path) -> None:
    meter = Meter()
    meter.read(told(*BEGAN, (50.0, SLOW), (60.0, ENDING)))
    exist = set(re.findall(r"^(outlast_\w+)", exported(meter), re.MULTILINE))
    panels = json.loads((DEPLOY / "grafana" / "outlast-job.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    alerts = (DEPLOY / "prometheus" / "outlast-alerts.yaml").read_text()
    asked = set(re.findall(r"\boutlast_\w+", " ".join([*queries, *re.findall(r"expr: .*", alerts)])))
    assert asked
    assert asked <= exist
    plain = [query.replace("$__rate_interval_ms", "60000").replace("$__rate_interval", "1m") for query in queries]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(plain)]
    file = tmp_path / "panels.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", file)


def test_it_is_served_and_written_as_a_whole(tmp_path: Path) -> None:
    meter = Meter()
    meter.read(told(*BEGAN))
    made = registry(meter.families, lambda: {"job": meter.job, "run": meter.run})
    server, port = serve(made, "127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"outlast_generation" in answer.read()
    finally:
        server.shutdown()
        server.server_close()
    write(made, tmp_path / "outlast.prom")
    assert "outlast_generation" in (tmp_path / "outlast.prom").read_text()


def test_a_file_is_followed_line_by_line_and_half_a_line_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    tail = EventTail([file])
    assert tail.news() == []
    event = b'"event":"node joined","node":"a","workers":1,"generation":0'
    line = b'{"version":2,"time":5.0,"job":"j","run":"r","term":1,%b}\n' % event
    file.write_bytes(line + line[:30])
    assert len(tail.news()) == 1
    with file.open("ab") as more:
        more.write(line[30:])
    assert len(tail.news()) == 1
    assert tail.news() == []
    file.write_bytes(line)
    assert len(tail.news()) == 1
