"""The page over HTTP: its files, the stream, what is known of a rank, and actions where they are allowed."""

from __future__ import annotations

from functools import cache
from mimetypes import guess_type
from pathlib import Path
from typing import Annotated

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.dashboard.access import HEADERS, Access
from outlast.dashboard.logs import NoRankLog, RankLogs, RankLogTail
from outlast.dashboard.source import JobSource
from outlast.dashboard.stream import Browsers
from outlast.observe import ObserverRefused
from outlast.protocol.requests import Answer

STATIC = Path(__file__).parent / "static"
LARGEST_REQUEST = 4096  # bytes
ACTIONS = ("drain", "restart", "stop")
WRONG_TOKEN = "this is not the token of this page: open the link that `outlast dashboard` printed, or paste its token"


class ActionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody wants of the job. `confirm`: they have typed the job's name."""

    what: str
    confirm: str
    subject: Annotated[str, msgspec.Meta(max_length=255)] = ""


class Dashboard:
    """What the routes answer from. `source` None: the page is read-only."""

    def __init__(self, browsers: Browsers, access: Access, *, logs: RankLogs, source: JobSource | None = None) -> None:
        self._browsers = browsers
        self._state = browsers.state
        self._access = access
        self._logs = logs
        self._source = source

    def app(self) -> ASGIApp:
        """The whole page, behind its gate."""
        routes = [
            Route("/", _file),
            Route("/api/session", self._session, methods=["POST"]),
            Route("/api/stream", self._stream),
            Route("/api/about", self._about),
            Route("/api/rank", self._rank),
            Route("/api/log", self._log),
            Route("/api/act", self._action, methods=["POST"]),
            Route("/static/{name:path}", _file),
        ]
        return PageGate(Starlette(routes=routes, middleware=[Middleware(GZipMiddleware)]), self._access)

    async def _session(self, request: Request) -> Response:
        if not self._access.knows_token(request.headers):
            return PlainTextResponse(WRONG_TOKEN, 401)
        secure = request.url.scheme == "https"
        return Response(status_code=204, headers={"set-cookie": self._access.cookie_header(secure=secure)})

    async def _stream(self, request: Request) -> Response:
        return self._browsers.response(request)

    async def _about(self, request: Request) -> Response:  # noqa: ARG002
        return _json({"actions": ACTIONS if self._source else ()})

    async def _rank(self, request: Request) -> Response:
        known = self._state.rank(_number(request, "rank"))
        return _json(known) if known else PlainTextResponse("no such rank in this generation", 404)

    async def _log(self, request: Request) -> Response:
        rank = _number(request, "rank")
        if (node := self._state.node_of(rank)) is None:
            return PlainTextResponse("no such rank in this generation", 404)
        try:
            return _json(await self._logs.tail(rank, node))
        except NoRankLog as error:
            return _json(RankLogTail("", cut=False, problem=str(error)))  # many jobs write no logs: that is no error

    async def _action(self, request: Request) -> Response:
        if self._source is None:
            return PlainTextResponse("this page is read-only: start it with --allow-actions", 403)
        try:
            wanted = msgspec.json.decode(await _body(request), type=ActionRequest)
        except (msgspec.MsgspecError, ValueError):
            return PlainTextResponse("that is no request of this page", 400)
        if wanted.what not in ACTIONS:
            return PlainTextResponse(f"there is no {wanted.what[:40]!r} here, only {', '.join(ACTIONS)}", 400)
        if wanted.confirm != self._state.job:
            return PlainTextResponse("not confirmed: type the name of the job", 409)
        try:
            answer = await _act(self._source, wanted)
        except (CoordinatorUnreachable, ObserverRefused) as error:
            return PlainTextResponse(str(error), 502)
        return _json({"done": answer.done, "text": answer.text})


class PageGate:
    """Turns away what `Access` denies, and puts the same headers on every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store" if scope["path"].startswith("/api/") else "no-cache")
            await send(message)

        denied = self._access.deny(scope["method"], scope["path"], Headers(scope=scope))
        app = self._app if denied is None else PlainTextResponse(denied.line, denied.status)
        await app(scope, receive, guarded)


async def _act(source: JobSource, wanted: ActionRequest) -> Answer:
    if wanted.what == "drain":
        return await source.drain(wanted.subject)
    return await (source.restart() if wanted.what == "restart" else source.stop())


async def _file(request: Request) -> Response:
    name = request.path_params.get("name", "index.html")
    content = _files().get(name)
    if content is None:
        return PlainTextResponse("there is no such file", 404)
    return Response(content, media_type=guess_type(name)[0])


@cache
def _files() -> dict[str, bytes]:
    """All of the page, read once: it is small, and a disk that hangs later does not hang it."""
    return {file.relative_to(STATIC).as_posix(): file.read_bytes() for file in STATIC.rglob("*") if file.is_file()}


async def _body(request: Request) -> bytes:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > LARGEST_REQUEST:
            raise ValueError("too long")
    return data


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
