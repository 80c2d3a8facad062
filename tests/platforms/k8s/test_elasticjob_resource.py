"""The resource on a real API server: what it takes, what it refuses, and what users see."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from control_plane import ControlPlane
from outlast.k8s.execution import job_path
from outlast.k8s.reading import observe
from outlast.k8s.reconcile import reconcile
from outlast.k8s.resource import API_VERSION, KIND, ElasticJobSpec

CONTAINER = {"name": "main", "image": "train:1", "notYetKnown": {"kept": True}}


def job(name: str, **spec: Any) -> dict[str, Any]:
    worker = {"template": {"spec": {"containers": [CONTAINER]}}, **spec.pop("worker", {})}
    body = {"replicaSpecs": {"worker": worker}, **spec}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": body}


def test_a_job_gets_the_defaults_of_the_code_and_keeps_unknown_fields_of_its_template(plane: ControlPlane) -> None:
    status, body = plane.call("POST", job_path("default"), job("plain"))
    assert status == 201, body
    assert body["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"] == [CONTAINER]
    sent = msgspec.convert(job("plain")["spec"], ElasticJobSpec)
    assert msgspec.convert(body["spec"], ElasticJobSpec) == sent
    assert body["spec"]["faultyNodes"]["exitCodes"] == [14, 128, 201, 202]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"worker": {"replicas": 0}}, "spec.replicaSpecs.worker.replicas"),
        ({"faultyNodes": {"action": "Explode"}}, 'Unsupported value: "Explode": supported values: "Cordon", "Exclude"'),
        ({"memory": {"factor": 1}}, "spec.memory.factor"),
        ({"drain": {"gracePeriod": "soon"}}, "spec.drain.gracePeriod"),
        ({"spares": "many"}, "spec.spares"),
        ({"nprocPerNode": "lots"}, "spec.nprocPerNode"),
        ({"replicaSpecs": {}}, "spec.replicaSpecs.worker: Required value"),
    ],
)
def test_a_bad_job_is_refused_with_the_field(plane: ControlPlane, spec: dict[str, Any], told: str) -> None:
    status, body = plane.call("POST", job_path("default"), job("bad", **spec))
    assert status == 422, body
    assert told in body["message"]


def test_an_unknown_field_is_noticed_though_the_server_drops_it(plane: ControlPlane) -> None:
    plane.kubectl(
        "apply", "--validate=false", "-f", "-", given=json.dumps(job("typo", elasticPolcy={}, drain={"grace": "5s"}))
    )
    body = plane.call("GET", job_path("default", "typo"))[1]
    assert "elasticPolcy" not in body["spec"]
    accepted = reconcile(observe(body, []), now=0.0).status.condition("Accepted")
    assert accepted is not None
    assert accepted.message == (
        "there is no spec.drain.grace (did you mean gracePeriod?), spec.elasticPolcy (did you mean elasticPolicy?); "
        "correct or remove it"
    )


def test_kubectl_scales_a_job_and_shows_it_by_its_short_name(plane: ControlPlane) -> None:
    plane.call("POST", job_path("default"), job("scaled", worker={"replicas": 2}))
    plane.kubectl("scale", "ej/scaled", "--replicas=3")
    assert plane.call("GET", job_path("default", "scaled"))[1]["spec"]["replicaSpecs"]["worker"]["replicas"] == 3
    shown = plane.kubectl("get", "ej", "scaled", "-o", "wide").stdout.split()
    assert shown[:7] == ["NAME", "PHASE", "NODES", "GENERATION", "STEP", "RESTARTS", "AGE"]


def test_an_apply_of_the_user_leaves_the_status_alone(plane: ControlPlane) -> None:
    plane.call("POST", job_path("default"), job("kept"))
    status = {"status": {"phase": "Running", "slots": {"0": {"life": 3, "failures": 2}}}}
    assert plane.call("PATCH", f"{job_path('default', 'kept')}/status", status)[0] == 200
    plane.kubectl("apply", "-f", "-", given=json.dumps({**job("kept", spares=1), "status": {}}))
    body = plane.call("GET", job_path("default", "kept"))[1]
    assert body["spec"]["spares"] == 1
    assert body["status"] == status["status"]
