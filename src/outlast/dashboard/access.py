"""Who may see the page. Host is checked against DNS rebinding, Origin against other sites; the token does the rest."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

COOKIE_AGE = 30 * 24 * 3600  # seconds
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Denied(msgspec.Struct, frozen=True):
    """Why a request is turned away."""

    status: int
    line: str


class Access(msgspec.Struct, frozen=True):
    """What a page lets in. `token`: empty, if whoever reaches the port may read."""

    token: str
    hosts: frozenset[str] = frozenset()  # names besides localhost that the page may be called by

    @property
    def cookie(self) -> str:
        """Its name: of this token, since pages at other ports of one host share their cookies."""
        return f"outlast-{self._derived('name')[:12]}"

    def cookie_header(self, *, secure: bool) -> str:
        """What a browser with the right token is given."""
        kept = f"{self.cookie}={self._derived('value')}; Path=/; Max-Age={COOKIE_AGE}; HttpOnly; SameSite=Strict"
        return f"{kept}; Secure" if secure else kept

    def deny(self, method: str, path: str, headers: Mapping[str, str]) -> Denied | None:
        """Why this request may not be answered; None: it may."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            return Denied(421, f"this page is not {_host_name(host)[:80]!r}: start it with --allow-host to be so")
        if not _from_here(method, headers):
            return Denied(403, "requests from other sites are not answered")
        if not path.startswith("/api/") or path == "/api/session":
            return None  # the files of the page are public; the session is what a token is exchanged for
        if not self._knows(headers):
            return Denied(401, "the token is missing or wrong: open the link that `outlast dashboard` printed")
        return None

    def knows_token(self, headers: Mapping[str, str]) -> bool:
        """Whether the token itself was given, in the Authorization header."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return not self.token or (scheme.lower() == "bearer" and _same(given.strip(), self.token))

    def _knows(self, headers: Mapping[str, str]) -> bool:
        return self.knows_token(headers) or _same(_cookies(headers).get(self.cookie, ""), self._derived("value"))

    def _is_ours(self, host: str) -> bool:
        name = _host_name(host)
        return name == "localhost" or name.endswith(".localhost") or name in self.hosts or _is_address(name)

    def _derived(self, what: str) -> str:
        return hmac.new(self.token.encode(), f"outlast dashboard {what}".encode(), hashlib.sha256).hexdigest()


def _from_here(method: str, headers: Mapping[str, str]) -> bool:
    """Whether our own page, or no page at all, sends this. Browsers always say, for all that changes something."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        return False
    if method in ("GET", "HEAD"):
        # A link elsewhere may lead here: that is a navigation, and its answer is for the user alone.
        return headers.get("sec-fetch-site") != "cross-site" or headers.get("sec-fetch-mode") == "navigate"
    return origin is not None or "authorization" in headers


def _host_name(host: str) -> str:
    """The name without the port.

    >>> _host_name("[::1]:80"), _host_name("Gpu-01:8380"), _host_name("gpu-01.")
    ('::1', 'gpu-01', 'gpu-01')
    """
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    """Numbers are nobody's to rebind."""
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _cookies(headers: Mapping[str, str]) -> dict[str, str]:
    pairs = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
    return {name: value for name, _, value in pairs}


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(), known.encode())
