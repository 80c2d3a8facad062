"""A token that may only observe: made from the job's own, which cannot be had from it."""

from __future__ import annotations

import pytest

from outlast.transport.wire import NotOutlast, Wire, WrongToken, observer_token


def shaken(client: Wire, server: Wire) -> None:
    server.feed(client.hello)
    client.feed(server.take())
    server.feed(client.take())


@pytest.mark.parametrize(("token", "may_act"), [("secret", True), (observer_token("secret"), False)])
def test_both_tokens_open_the_connection_and_the_coordinator_knows_which_it_was(token: str, may_act: bool) -> None:
    client, server = Wire(token, agent=True), Wire("secret", agent=False)
    shaken(client, server)
    assert server.ready
    assert server.may_act is may_act
    assert server.feed(client.pack(b"hi")) == [b"hi"]
    assert client.feed(server.pack(b"ho")) == [b"ho"]


def test_an_observers_token_of_another_job_opens_nothing() -> None:
    client, server = Wire(observer_token("other"), agent=True), Wire("secret", agent=False)
    server.feed(client.hello)
    with pytest.raises(WrongToken):
        client.feed(server.take())


def test_nobody_gets_more_rights_by_saying_so() -> None:
    """An observer's token, used as if it were the job's own."""
    client, server = Wire(observer_token("secret"), agent=True), Wire("secret", agent=False)
    server.feed(b"OUTLAST\x01" + client.hello[8:])
    with pytest.raises(NotOutlast):
        client.feed(server.take())
    assert not server.ready
