"""Finds a running ElasticJob for commands that watch: where its pods are, and its token."""

from __future__ import annotations

import asyncio
import base64

from outlast.k8s.client import ApiClient, ApiUnavailable, connect
from outlast.k8s.execution import NOT_FOUND, OK, ApiRequest
from outlast.k8s.observed import JOB_LABEL
from outlast.k8s.rendering import PORT, TOKEN_KEY, secret_name
from outlast.launch import Endpoint
from outlast.observe import FoundJob
from outlast.settings.settings import Settings


def found_in_cluster(given: str, settings: Settings) -> FoundJob:
    """The ElasticJob `NAME` or `NAMESPACE/NAME`, by kubeconfig or the account of this pod.

    Raises ValueError, in one line. Pods are asked at their own addresses: this works where those can be reached.
    """
    namespace, _, name = given.rpartition("/")
    return asyncio.run(_find(namespace, name, settings))


async def _find(namespace: str, name: str, settings: Settings) -> FoundJob:
    async with connect() as client:
        space = namespace or client.namespace
        token = settings.token or await _token(client, space, name)
        try:
            pods = await client.list(f"/api/v1/namespaces/{space}/pods", f"{JOB_LABEL}={name}")
        except ApiUnavailable as error:
            raise ValueError(str(error)) from error
    running = [each["status"] for each in pods.items if each.get("status", {}).get("phase") == "Running"]
    places = tuple(Endpoint(each["podIP"], PORT) for each in running if each.get("podIP"))
    if not places:
        raise ValueError(f"no pod of {space}/{name} runs: `kubectl -n {space} describe ej {name}` says why")
    return FoundJob("", places, token, settings)


async def _token(client: ApiClient, namespace: str, name: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/secrets/{secret_name(name)}"
    reply = await client.send(ApiRequest(method="GET", path=path))
    if reply.status == OK:
        return base64.b64decode(reply.body["data"][TOKEN_KEY]).decode()
    if reply.status == NOT_FOUND:
        raise ValueError(f"no ElasticJob {name!r} runs in namespace {namespace!r}: `kubectl get ej -A` lists them")
    raise ValueError(f"cannot read the job's token: {reply.message}")
