"""The manifest of the resource says what the structs say, and can be served by any API server since 1.20."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from outlast.k8s import crd
from outlast.k8s.resource import ElasticJobSpec

FILE = Path(__file__).parents[3] / "deploy" / "elasticjob-crd.yaml"
SPEC = {"replicaSpecs": {"worker": {"template": {}}}}


def defaulted(schema: dict[str, Any], value: Any) -> Any:
    """What the API server makes of a value: absent fields get their defaults, outer ones first."""
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    filled = {key: each["default"] for key, each in properties.items() if "default" in each} | value
    return {key: defaulted(properties.get(key, {}), each) for key, each in filled.items()}


def schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for each in schema.get("properties", {}).values():
        yield from schemas(each)
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from schemas(schema[key])


def test_the_manifest_is_made_from_the_code() -> None:
    assert yaml.safe_load(FILE.read_text()) == crd.manifest(), (
        "run: outlast k8s manifests --crd > deploy/elasticjob-crd.yaml"
    )


def test_the_servers_defaults_are_the_codes() -> None:
    served = defaulted(crd.schema_of(ElasticJobSpec), SPEC)
    assert served["memory"]["onOOM"] == "Grow"
    assert msgspec.convert(served, ElasticJobSpec) == msgspec.convert(SPEC, ElasticJobSpec)


def test_the_schema_is_structural() -> None:
    for each in schemas(crd.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]):
        assert "type" in each or each.get("x-kubernetes-int-or-string"), each
        assert "$ref" not in each


def test_the_schema_fits_into_the_annotation_of_kubectl_apply() -> None:
    assert len(FILE.read_bytes()) < 64 * 1024
