"""What installs the operator: the resource, its rights, and a Deployment."""

from __future__ import annotations

from typing import Any

from outlast.k8s import crd
from outlast.k8s.resource import GROUP, PLURAL

Manifest = dict[str, Any]

NAME = "outlast-operator"
LABELS = {"app.kubernetes.io/name": NAME}
# Nothing else: no exec, no logs, no node. Training pods have no rights at all.
RULES = [
    {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["get", "list", "watch", "delete"]},
    {"apiGroups": [GROUP], "resources": [f"{PLURAL}/status"], "verbs": ["update"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["services", "secrets"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["create", "patch"]},
    {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["create", "patch"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
]
NODE_RULES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]}]


def installation(namespace: str, image: str, *, nodes: bool = False) -> list[Manifest]:
    """Everything that one namespace needs; `nodes`: with the right to taint and cordon nodes of the cluster."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta(namespace)}
    found = [crd.manifest(), account, *_role("Role", namespace, RULES)]
    if nodes:
        found += _role("ClusterRole", namespace, NODE_RULES)
    return [*found, _deployment(namespace, image, nodes=nodes)]


def _meta(namespace: str, name: str = NAME) -> Manifest:
    return {"name": name, "namespace": namespace, "labels": LABELS}


def _role(kind: str, namespace: str, rules: list[Manifest]) -> list[Manifest]:
    api = "rbac.authorization.k8s.io"
    meta: Manifest = _meta(namespace)
    if kind == "ClusterRole":
        meta = {"name": f"{NAME}-{namespace}-nodes", "labels": LABELS}
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": namespace}
    reference = {"apiGroup": api, "kind": kind, "name": meta["name"]}
    role = {"apiVersion": f"{api}/v1", "kind": kind, "metadata": meta, "rules": rules}
    binding = {"kind": f"{kind}Binding", "metadata": meta, "roleRef": reference, "subjects": [subject]}
    return [role, {"apiVersion": f"{api}/v1", **binding}]


def _deployment(namespace: str, image: str, *, nodes: bool) -> Manifest:
    command = ["outlast", "k8s", "operator", f"--namespace={namespace}", *(["--nodes"] if nodes else [])]
    container = {
        "name": "operator",
        "image": image,
        "command": command,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
        },
    }
    template = {"metadata": {"labels": LABELS}, "spec": {"serviceAccountName": NAME, "containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _meta(namespace), "spec": spec}
