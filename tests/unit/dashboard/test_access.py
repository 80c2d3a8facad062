"""Who may see the page."""

from __future__ import annotations

import pytest

from outlast.dashboard.access import Access, Denied

ACCESS = Access("secret", frozenset({"gpu-01", "gpu-01.cluster"}))


def headers(host: str = "localhost:8380", **more: str) -> dict[str, str]:
    return {"host": host, **{name.replace("_", "-"): value for name, value in more.items()}}


def status(denied: Denied | None) -> int:
    return 200 if denied is None else denied.status


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9", "127.0.0.1:8380", "[::1]:8380", "10.0.0.7", "GPU-01", "gpu-01.cluster.:80"]
)
def test_it_answers_to_its_own_names_and_to_addresses(host: str) -> None:
    assert ACCESS.deny("GET", "/", headers(host)) is None


@pytest.mark.parametrize("host", ["", "evil.example", "localhost.evil.example:8380", "127.0.0.1.evil.example", "[x"])
def test_a_name_that_was_rebound_to_us_is_turned_away(host: str) -> None:
    assert status(ACCESS.deny("GET", "/", headers(host))) == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "http://localhost"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_sites_and_other_ports_are_turned_away(method: str, origin: str) -> None:
    asked = headers(origin=origin, authorization="Bearer secret")
    assert status(ACCESS.deny(method, "/api/about", asked)) == 403


def test_a_link_elsewhere_may_lead_to_the_page_but_nothing_else_may_load_it() -> None:
    navigation = headers(sec_fetch_site="cross-site", sec_fetch_mode="navigate")
    assert ACCESS.deny("GET", "/", navigation) is None
    assert status(ACCESS.deny("GET", "/static/app.js", headers(sec_fetch_site="cross-site"))) == 403


@pytest.mark.parametrize("given", ["", "Bearer wrong", "Bearer secret2", "Basic secret", "secret"])
def test_nothing_of_the_job_is_told_without_the_token(given: str) -> None:
    assert status(ACCESS.deny("GET", "/api/stream", headers(authorization=given))) == 401


def test_the_token_opens_it_and_so_does_the_cookie_it_is_exchanged_for() -> None:
    assert ACCESS.deny("GET", "/api/stream", headers(authorization="Bearer secret")) is None
    cookie = ACCESS.cookie_header(secure=False)
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "secret" not in cookie
    assert ACCESS.deny("GET", "/api/stream", headers(cookie=f"other=1; {cookie.split(';')[0]}")) is None
    assert status(Access("another").deny("GET", "/api/stream", headers(cookie=cookie.split(";")[0]))) == 401


def test_a_change_needs_an_origin_or_the_token_itself() -> None:
    cookie = ACCESS.cookie_header(secure=True).split(";")[0]
    assert status(ACCESS.deny("POST", "/api/act", headers(cookie=cookie))) == 403
    assert ACCESS.deny("POST", "/api/act", headers(cookie=cookie, origin="http://localhost:8380")) is None
    assert ACCESS.deny("POST", "/api/act", headers(authorization="Bearer secret")) is None


def test_without_a_token_whoever_reaches_it_may_read() -> None:
    assert Access("").deny("GET", "/api/stream", headers()) is None
