"""What lies in deploy/ is what the code would print: the manifest, the chart, and an image without torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.k8s import crd
from outlast.k8s.manifests import installation

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm" / "outlast"


def rendered(text: str, values: dict[str, Any], namespace: str) -> str:
    """What Helm would make of a template of ours. They use nothing but values and `if … end`."""

    def kept(found: re.Match[str]) -> str:
        return found[2].rstrip("\n") if values[found[1]] else ""

    text = re.sub(r"\s*{{- if \.Values\.(\w+) }}(.*?){{- end }}", kept, text, flags=re.DOTALL)
    text = re.sub(r"{{ \.Values\.(\w+) }}", lambda found: str(values[found[1]]), text)
    text = text.replace("{{ .Release.Namespace }}", namespace)
    assert "{{" not in text, f"Helm knows more than this test: {text}"
    return text


def in_order(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(objects, key=lambda each: str(each["kind"]))


@pytest.mark.parametrize("nodes", [False, True])
def test_the_chart_installs_what_the_command_does(nodes: bool) -> None:
    values = {**yaml.safe_load((CHART / "values.yaml").read_text()), "image": "registry/outlast:1", "nodes": nodes}
    texts = [rendered(file.read_text(), values, "ml") for file in sorted((CHART / "templates").iterdir())]
    found = [each for text in texts for each in yaml.safe_load_all(text) if each]
    expected = installation("ml", "registry/outlast:1", nodes=nodes)
    assert in_order(found) == in_order(expected[1:])
    assert yaml.safe_load((CHART / "crds" / "elasticjob.yaml").read_text()) == expected[0] == crd.manifest()


def test_the_charts_values_have_what_its_templates_ask_for() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    templates = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    asked = set(re.findall(r"\.Values\.(\w+)", templates))
    assert set(values) == asked
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["apiVersion"] == "v2"


def test_the_single_manifest_is_what_the_command_prints() -> None:
    """`outlast k8s manifests > deploy/operator.yaml`"""
    found = list(yaml.safe_load_all((DEPLOY / "operator.yaml").read_text()))
    assert found == installation("default", "outlast-operator:latest")


def test_the_operator_needs_no_torch() -> None:
    """deploy/Dockerfile installs none."""
    program = "import sys; import outlast.cli.k8s, lightkube; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
