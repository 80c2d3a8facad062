"""The API server over HTTP: raw JSON in both directions, so that no field of a template is ever lost.

lightkube reads kubeconfig or the pod's service account, refreshes tokens, and makes the connection.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from outlast.k8s.execution import ApiReply, ApiRequest
from outlast.k8s.observed import Raw

REQUEST_TIMEOUT = 10.0  # seconds; less than what a new leader waits for, so that no request outlives its leader by much
WATCH_SECONDS = 240  # after which the server ends a watch: one that hangs behind a proxy is noticed then
PATCH = "application/strategic-merge-patch+json"
GONE = 410


class ApiUnavailable(Exception):
    """The API server cannot be reached, or refuses to list; the text says which."""


class WatchExpired(Exception):
    """What was seen is too old to go on from: list again."""


class Listing(msgspec.Struct, frozen=True):
    """All objects of a kind, and the version from which to watch."""

    items: list[dict[str, Any]]
    version: str


class ApiClient:
    """Requests, lists and watches. Made by `connect`."""

    def __init__(self, http: Any, errors: tuple[type[Exception], ...], namespace: str) -> None:
        self._http = http
        self._errors = errors
        self.namespace = namespace  # of the kubeconfig's context, or of this pod

    async def send(self, request: ApiRequest) -> ApiReply:
        """One request; status 0 if there was no answer."""
        content = None if request.body is None else json.dumps(request.body).encode()
        kind = request.content or (PATCH if request.method == "PATCH" else "application/json")
        headers = {"Content-Type": kind}
        try:
            answer = await self._http.request(request.method, request.path, content=content, headers=headers)
        except self._errors as error:
            return ApiReply(0, {"message": f"no answer from the API server: {error or type(error).__name__}"})
        return ApiReply(answer.status_code, _decoded(answer.content))

    async def list(self, path: str, selector: str = "") -> Listing:
        """Everything there is, from the server's own store and not from a cache of it."""
        query = {"labelSelector": selector} if selector else {}
        try:
            answer = await self._http.get(path, params=query)
        except self._errors as error:
            raise ApiUnavailable(f"no answer from the API server: {error or type(error).__name__}") from error
        body = _decoded(answer.content)
        if answer.status_code != 200:
            raise ApiUnavailable(f"cannot list {path}: {body.get('message', answer.status_code)}")
        return Listing(body["items"], body["metadata"]["resourceVersion"])

    async def watch(self, path: str, version: str, selector: str = "") -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Changes since a version, until the server ends the watch; raises `WatchExpired` when it has forgotten."""
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        query |= {"allowWatchBookmarks": "true"} | ({"labelSelector": selector} if selector else {})
        try:
            async with self._http.stream("GET", path, params=query, timeout=WATCH_SECONDS + 30) as answer:
                if answer.status_code == GONE:
                    raise WatchExpired
                if answer.status_code != 200:
                    raise ApiUnavailable(f"cannot watch {path}: HTTP status {answer.status_code}")
                async for line in answer.aiter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise WatchExpired
                    yield event["type"], event["object"]
        except self._errors as error:
            raise ApiUnavailable(f"the watch broke off: {error or type(error).__name__}") from error


def _decoded(content: bytes) -> Raw:
    try:
        body: Mapping[str, Any] = json.loads(content)
    except ValueError:
        return {"message": content[:300].decode(errors="replace")}
    return body


@asynccontextmanager
async def connect(kubeconfig: str = "", context: str = "") -> AsyncIterator[ApiClient]:
    """A client by kubeconfig, or by the service account of this pod. Raises ValueError, in one line."""
    try:
        import httpx2
        from lightkube.config.client_adapter import AsyncClient, ConnectionParams
        from lightkube.config.kubeconfig import KubeConfig
        from lightkube.core.exceptions import ConfigError
    except ImportError as error:
        raise ValueError("this needs lightkube: pip install 'outlast[kubernetes]'") from error
    try:
        found = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
        config = found.get(context or None)
        parameters = ConnectionParams(timeout=httpx2.Timeout(REQUEST_TIMEOUT))
        if config is None:
            raise ValueError(f"no context {context!r} in the kubeconfig; `kubectl config get-contexts` lists them")
        http = AsyncClient(config, parameters)
    except (ConfigError, OSError, AssertionError) as error:
        raise ValueError(f"no cluster to talk to: {error}; give --kubeconfig, or set KUBECONFIG") from error
    async with http:
        yield ApiClient(http, (httpx2.HTTPError, httpx2.StreamError, OSError), config.namespace)
