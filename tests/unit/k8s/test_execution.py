"""How a plan is carried out: what is done where a pod that should be gone is there after all."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.k8s.execution import ApiReply, carry_out
from outlast.k8s.plan import JobObservation, Plan
from outlast.k8s.rendering import JobIdentity
from outlast.k8s.resource import ElasticJobStatus

JOB = JobIdentity("mnist", "team", "uid-of-mnist")


@pytest.mark.parametrize(
    ("owner", "again"), [("uid-of-mnist", True), ("uid-of-another", False)], ids=["ours", "somebody else's"]
)
def test_a_pod_under_the_name_of_one_that_should_be_gone_counts_if_it_is_ours(owner: str, again: bool) -> None:
    seen = JobObservation(job=JOB, spec=None)
    execution = carry_out(Plan(ElasticJobStatus(), gone=("mnist-worker-0-0",)), {}, seen, token="t", now=0.0)
    assert next(execution).path == "/api/v1/namespaces/team/pods/mnist-worker-0-0"
    body: dict[str, Any] = {"metadata": {"ownerReferences": [{"uid": owner}]}}
    with pytest.raises(StopIteration) as done:
        execution.send(ApiReply(200, body))
    assert done.value.value.again is again
