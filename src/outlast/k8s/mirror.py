"""A copy of the API server's objects of one kind, kept by list and watch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from outlast.k8s.client import ApiClient, ApiUnavailable, WatchExpired
from outlast.k8s.observed import Raw

log = logging.getLogger("operator")

RETRY, LONGEST_RETRY = 0.5, 30.0

Key = tuple[str, str]  # namespace and name


class Mirror:
    """The objects, by namespace and name. `changed` hears of each one that comes, changes or goes."""

    def __init__(self, client: ApiClient, path: str, changed: Callable[[Raw], None], selector: str = "") -> None:
        self.objects: dict[Key, Raw] = {}
        self.listed = asyncio.Event()
        self._client = client
        self._path = path
        self._selector = selector
        self._changed = changed

    async def run(self) -> None:
        """Keep the copy, until cancelled."""
        wait = RETRY
        while True:
            try:
                version = await self._list()
                wait = RETRY
                while True:  # a watch that ends in order goes on from where it was
                    version = await self._watch(version)
            except WatchExpired:
                log.debug("%s: too old to watch on, listing again", self._path)
            except ApiUnavailable as error:
                log.warning("%s; trying again in %.1f s", error, wait)
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_RETRY)

    async def _list(self) -> str:
        listing = await self._client.list(self._path, self._selector)
        before, self.objects = self.objects, {key_of(each): each for each in listing.items}
        self.listed.set()
        for raw in (*self.objects.values(), *(before[key] for key in before if key not in self.objects)):
            self._changed(raw)
        return listing.version

    async def _watch(self, version: str) -> str:
        async for kind, raw in self._client.watch(self._path, version, self._selector):
            version = raw["metadata"]["resourceVersion"]
            if kind == "BOOKMARK":
                continue
            if kind == "DELETED":
                self.objects.pop(key_of(raw), None)
            else:
                self.objects[key_of(raw)] = raw
            self._changed(raw)
        return version


def key_of(raw: Raw) -> Key:
    meta = raw["metadata"]
    return meta.get("namespace", ""), meta["name"]
