"""Checkpoints in an object store (S3, Google Cloud Storage), through obstore.

There is no rename in a store. So a save is written where it will stay, in a folder that is its own, and the manifest
comes last: it is created only if it is not there, so it appears whole, and once. What has no manifest is a draft.

Requests are tried again, with growing pauses, for some minutes. A large file goes up in parts, a few at a time,
straight from the pages that hold it. Credentials and the endpoint are those that obstore finds in the environment.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

from outlast.checkpoint.storage import format as rules
from outlast.checkpoint.storage.format import MANIFEST, Save
from outlast.checkpoint.storage.storage import Draft, FoundCheckpoint, Span, StorageUnreachable, Url

CONCURRENCY = 4  # chunks on their way at a time: so much is in memory of a file
PART = 16 * 1024 * 1024  # bytes of a large file that go up as one
PARTS = 9_000  # of them; S3 allows ten thousand
PAUSES = (0.2, 0.8, 3.2)  # seconds, after an answer that was cut off
TIMEOUT = timedelta(seconds=120)  # for one request, with all of its data
CONNECT_TIMEOUT = timedelta(seconds=10)
RETRIES: dict[str, Any] = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=150),
    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=15), "base": 2},
}
_DETAILS = "\n\nDebug source"
_NO_BUCKET = re.compile(r"<Code>NoSuchBucket</Code>")
_REFUSED = re.compile(
    r"<Code>(AccessDenied|Signature\w*|InvalidAccessKeyId|\w*Token\w*|\w*Credential\w*|\w*Auth\w*)</Code>"
)
_SAID = re.compile(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", re.DOTALL)
_STATUS = re.compile(r"status code: (\d+[A-Za-z -]*)")
_CAUSE = re.compile(r'message: "(.*?)"|kind: (Timeout|Decode|Interrupted)\b|\b(TimedOut|IncompleteMessage)\b')
_S3_ENDPOINT = re.compile(r"^AWS_ENDPOINT\w*=http://")
_GOOGLE_ENDPOINT = re.compile(r'^GOOGLE_SERVICE_ACCOUNT_KEY=.*"gcs_base_url"\s*:\s*"http://', re.DOTALL)

T = TypeVar("T")


class Bucket:
    """A prefix of a bucket, as `Storage`."""

    stale = 24 * 3600.0  # an upload shows when it is done, and not before

    def __init__(self, url: Url) -> None:
        self._url = url
        self._store = _connect(url.scheme, url.bucket, _environment())

    def read(self, name: str) -> bytes:
        import obstore

        return self._reading(name, lambda: bytes(obstore.get(self._store, self._key(name)).bytes()))

    def ranges(self, name: str, spans: Sequence[Span]) -> Iterator[memoryview]:
        import obstore

        def get(span: Span) -> memoryview:
            start, length = span
            return self._reading(
                name, lambda: memoryview(obstore.get_range(self._store, self._key(name), start=start, length=length))
            )

        with ThreadPoolExecutor(CONCURRENCY, "outlast-fetch") as pool:
            ahead: deque[Future[memoryview]] = deque()
            try:
                for span in spans:
                    ahead.append(pool.submit(get, span))
                    if len(ahead) == CONCURRENCY:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for each in ahead:
                    each.cancel()

    def mapped(self, name: str) -> None:  # noqa: ARG002
        return None

    def sizes(self, folder: str) -> dict[str, int]:
        return {name: size for name, (size, _) in self._files(folder).items()}

    def write(self, name: str, data: bytes | memoryview) -> None:
        import obstore

        with self._said(name):
            obstore.put(self._store, self._key(name), bytes(data), use_multipart=False)

    def create(self, name: str, data: bytes | memoryview) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            with self._said(name):
                obstore.put(self._store, self._key(name), bytes(data), mode="create")
        except AlreadyExistsError:
            return False
        return True

    def stream(self, name: str, size: int, chunks: Iterable[memoryview]) -> None:
        import obstore

        if size <= PART:
            self.write(name, b"".join(chunks))
            return
        part = PART * -(-size // (PART * PARTS))
        options = {"use_multipart": True, "chunk_size": part, "max_concurrency": CONCURRENCY}
        with self._said(name):
            obstore.put(self._store, self._key(name), iter(chunks), **options)

    def draft(self, save: Save) -> str:
        return rules.unique_name(save)

    def begin(self, folder: str) -> None:
        pass

    def publish(self, folder: str, step: int, manifest: bytes) -> str:  # noqa: ARG002
        self.create(f"{folder}/{MANIFEST}", manifest)  # or somebody else has: nobody but for this save
        return folder

    def discard(self, folder: str, names: Iterable[str]) -> None:
        import obstore

        with suppress(OSError), self._said(folder):
            obstore.delete(self._store, [self._key(f"{folder}/{name}") for name in names])

    def found(self) -> list[FoundCheckpoint]:
        matches = [(name, files, rules.FINAL.fullmatch(name)) for name, files in self._folders().items()]
        return [
            FoundCheckpoint(self._url / name, int(match[1]), int(files[MANIFEST][1] * 1000))
            for name, files, match in matches
            if match and MANIFEST in files
        ]

    def drafts(self) -> list[Draft]:
        matches = [(name, files, rules.FINAL.fullmatch(name)) for name, files in self._folders().items()]
        return [
            Draft(name, match[3], int(match[4]), max(when for _, when in files.values()))
            for name, files, match in matches
            if match and match[3] and MANIFEST not in files
        ]

    def hold(self, folder: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()  # there are no locks: who reads one that is removed finds that something is missing

    def remove(self, folder: str) -> bool:
        import obstore

        with self._said(folder):
            names = set(self.sizes(folder))
            if MANIFEST in names:
                obstore.delete(self._store, self._key(f"{folder}/{MANIFEST}"))  # from now on it does not exist
            obstore.delete(self._store, [self._key(f"{folder}/{name}") for name in sorted(names - {MANIFEST})])
        return True

    def sweep(self) -> None:
        pass  # what is left without a manifest is a draft

    def _folders(self) -> dict[str, dict[str, tuple[int, float]]]:
        """The files of each folder that may be one of ours. Not by one listing: much else may lie in a bucket."""
        import obstore

        listing = self._reading("", lambda: obstore.list_with_delimiter(self._store, self._url.prefix or None))
        names = [prefix.rpartition("/")[2] for prefix in listing["common_prefixes"]]
        folders = {name: self._files(name) for name in names if rules.FINAL.fullmatch(name)}
        return {name: files for name, files in folders.items() if files}  # one may just have been removed

    def _files(self, folder: str) -> dict[str, tuple[int, float]]:
        """Of each file its size, and when it came."""
        import obstore

        key = self._key(folder)
        listing = self._reading(folder, lambda: list(obstore.list(self._store, key)))
        found = ((each["path"][len(key) + 1 :], each) for batch in listing for each in batch)
        return {name: (each["size"], each["last_modified"].timestamp()) for name, each in found}

    def _reading(self, name: str, call: Callable[[], T]) -> T:
        """Ask again after an answer that ended in its middle: that is not tried again by obstore."""
        for pause in PAUSES:
            try:
                with self._said(name):
                    return call()
            except StorageUnreachable as error:
                if error.errno != errno.ECONNRESET:
                    raise
            time.sleep(pause)
        with self._said(name):
            return call()

    def _key(self, name: str) -> str:
        return "/".join(filter(None, (self._url.prefix, name)))

    @contextmanager
    def _said(self, name: str) -> Iterator[None]:
        """Make OSErrors of what obstore raises, in one line."""
        from obstore import exceptions

        where = str(self._url / name) if name else str(self._url)
        try:
            yield
        except exceptions.AlreadyExistsError:
            raise
        except (FileNotFoundError, exceptions.BaseError) as error:
            text = str(error).partition(_DETAILS)[0]
            if _NO_BUCKET.search(text):
                raise StorageUnreachable(
                    errno.ENXIO, f"there is no bucket {self._url.bucket}: make it", where
                ) from error
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from error
            if isinstance(error, exceptions.UnauthenticatedError) or _REFUSED.search(text):
                advice = "give credentials that may read and write there, in the environment"
                raise StorageUnreachable(errno.EACCES, f"{_in_one_line(error)}; {advice}", where) from error
            cut = "body" in text and not _STATUS.search(text)
            raise StorageUnreachable(errno.ECONNRESET if cut else errno.EIO, _in_one_line(error), where) from error


def _in_one_line(error: Exception) -> str:
    """The gist of what obstore says on a page.

    >>> said = "<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"
    >>> _in_one_line(Exception(f"PUT http://s3/b/x in 2ms - status code: 503 Service Unavailable: {said}"))
    '503 Service Unavailable (SlowDown: Reduce your rate)'
    """
    text, _, details = str(error).partition(_DETAILS)
    if status := _STATUS.search(text):
        said = _SAID.search(text)
        return status[1].strip() + (f" ({said[1]}: {said[2]})" if said else "")
    causes = dict.fromkeys(word for match in _CAUSE.finditer(details) for word in match.groups() if word)
    return " ".join(text.rpartition(" - ")[2].split()) + (f" ({', '.join(causes)})" if causes else "")


def _environment() -> tuple[tuple[str, str], ...]:
    """What obstore looks at: a change makes another store."""
    return tuple(sorted(item for item in os.environ.items() if item[0].startswith(("AWS_", "GOOGLE_"))))


@lru_cache(maxsize=16)
def _connect(scheme: str, bucket: str, environment: tuple[tuple[str, str], ...]) -> Any:
    try:
        from obstore import store
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"checkpoints in {scheme}://{bucket} need obstore: pip install 'outlast[stores]'", name=error.name
        ) from None
    client: dict[str, Any] = {"timeout": TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
    kind, endpoint = (store.GCSStore, _GOOGLE_ENDPOINT) if scheme == "gs" else (store.S3Store, _S3_ENDPOINT)
    if any(endpoint.search(f"{name}={value}") for name, value in environment):
        client["allow_http"] = True  # who names it so means it so
    return kind(bucket, client_options=client, retry_config=RETRIES)
