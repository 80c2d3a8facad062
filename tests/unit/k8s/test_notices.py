"""What is told of a job as events of Kubernetes."""

from __future__ import annotations

from outlast.k8s.notices import ClusterEvent, manifest, notices
from outlast.k8s.rendering import JobIdentity
from outlast.k8s.resource import Condition, ElasticJobStatus, LastFault

FAULT = LastFault(time="t", pod="mnist-worker-0-0", cause="exit code 14", action="ExcludeNode", node="kn1")


def status(phase: str, *conditions: Condition, fault: LastFault | None = None) -> ElasticJobStatus:
    found = ElasticJobStatus(phase=phase, nodes="2/2:3", conditions=conditions)  # type: ignore[arg-type]
    return found if fault is None else ElasticJobStatus(phase=found.phase, conditions=conditions, last_fault=fault)


def condition(kind: str) -> Condition:
    return Condition(type=kind, status="True", reason=f"{kind}Reason", last_transition_time="t")


def test_a_phase_and_a_fault_and_a_condition_are_told_once() -> None:
    before, after = status("Pending"), status("Running")
    assert list(notices(before, after)) == [ClusterEvent("Normal", "Running", "2/2:3 pods run")]
    assert list(notices(after, after)) == []
    faulty = status("Running", condition("Fenced"), fault=FAULT)
    told = list(notices(after, faulty))
    assert [each.reason for each in told] == ["ExcludeNode", "FencedReason"]
    assert told[0].message == "mnist-worker-0-0 on kn1: exit code 14"
    assert list(notices(faulty, faulty)) == []


def test_the_end_is_told_by_its_condition() -> None:
    failed = status("Failed", condition("Failed"))
    assert [(each.kind, each.reason) for each in notices(status("Running"), failed)] == [("Warning", "FailedReason")]


def test_the_name_of_an_event_comes_from_the_version_that_it_tells_of() -> None:
    job = JobIdentity("mnist", "team", "uid")
    made = manifest(job, "255", 1, ClusterEvent("Normal", "Running", "x"), 0.0)
    assert made["metadata"] == {"name": "mnist.ff.1", "namespace": "team"}
    assert made["involvedObject"]["uid"] == "uid"
