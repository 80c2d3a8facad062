"""Sends manifests to the API server as `kubectl apply --server-side` does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import quote

from outlast.k8s.client import ApiClient
from outlast.k8s.execution import CREATED, ApiRequest

Manifest = dict[str, Any]

MANAGER = "outlast"
PLURALS = {
    "CustomResourceDefinition": "customresourcedefinitions",
    "ServiceAccount": "serviceaccounts",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Deployment": "deployments",
    "ElasticJob": "elasticjobs",
}


def apply_request(manifest: Manifest, *, dry_run: bool) -> ApiRequest:
    """The request that makes an object be as this manifest says; fields that it does not name stay as they are.

    >>> apply_request({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "namespace": "b"}},
    ...               dry_run=True).path
    '/api/v1/namespaces/b/serviceaccounts/a?fieldManager=outlast&force=true&dryRun=All'
    """
    meta, version = manifest["metadata"], manifest["apiVersion"]
    root = "/api" if version == "v1" else "/apis"
    space = f"/namespaces/{quote(meta['namespace'])}" if "namespace" in meta else ""
    flags = f"fieldManager={MANAGER}&force=true{'&dryRun=All' if dry_run else ''}"
    path = f"{root}/{version}{space}/{PLURALS[manifest['kind']]}/{quote(meta['name'])}?{flags}"
    return ApiRequest(method="PATCH", path=path, body=manifest, content="application/apply-patch+yaml")


async def apply(client: ApiClient, manifests: Iterable[Manifest], *, dry_run: bool) -> AsyncIterator[str]:
    """Apply one after the other, and say what was done. Raises ValueError in one line at the first that is refused."""
    for manifest in manifests:
        what = f"{manifest['kind']} {manifest['metadata']['name']}"
        reply = await client.send(apply_request(manifest, dry_run=dry_run))
        if not reply.ok:
            raise ValueError(f"{what}: {reply.message}")
        done = "created" if reply.status == CREATED else "applied"
        yield f"{what}: {done}{' (dry run)' if dry_run else ''}"
