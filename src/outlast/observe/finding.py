"""Finds the job that a command is about: on this machine without flags, else by its endpoint."""

from __future__ import annotations

import socket
import ssl
import time

import msgspec
from msgspec.structs import replace

from outlast.agent.coordinator_link.tls import client_tls
from outlast.launch import Endpoint
from outlast.observe.client import PATIENCE, Observer
from outlast.settings.settings import Settings
from outlast.transport import token as tokens
from outlast.transport.local_jobs import LocalJob, local_jobs

TRIES, PAUSE = 300, 0.2  # for an agent that is just starting, and seconds between them


class NoJobHere(ValueError):
    """No job of this user runs on this machine, or none of that name; the message says what to do."""


class FoundJob(msgspec.Struct, frozen=True):
    """Where to ask about a job. `logs`: directories on this machine that have its workers' logs."""

    job: str  # empty: whichever answers
    places: tuple[Endpoint, ...]
    token: str | None
    settings: Settings
    logs: tuple[str, ...] = ()

    def observer(self, *, patience: float = PATIENCE) -> Observer:
        return Observer(self.places, self.token, tls=self.tls(), job=self.job, patience=patience)

    def tls(self) -> ssl.SSLContext | None:
        context = client_tls(self.settings)
        if context is not None:
            # What answers may be passed on by another node. The proof of the token covers the certificate.
            context.check_hostname = False
        return context


def locate(settings: Settings, *, job: str = "", endpoint: Endpoint | None = None) -> FoundJob:
    """The job of this name, at this endpoint, or the only one of this user here. Raises ValueError, in one line."""
    given = (settings.token or None) if settings.auth else ""
    if endpoint is not None:
        return FoundJob(job, (endpoint,), given if given is not None else _token_at(endpoint), settings)
    jobs = _grouped(local_jobs() or _hosted())
    fitting = {key: all_of for key, all_of in jobs.items() if job in ("", key[0])}
    if not fitting:
        raise NoJobHere(_nowhere(job, list(jobs.values())))
    if len(fitting) > 1:
        raise ValueError(f"which one? Give --job NAME or --endpoint HOST:PORT: {_names(list(fitting.values()))}")
    [agents] = fitting.values()
    return _found(agents, settings)


def of_agent(settings: Settings, pid: int) -> FoundJob:
    """The job of this agent on this machine, which may only be starting. Raises ValueError, in one line."""
    for _ in range(TRIES):
        if agents := [agent for agent in local_jobs() if agent.pid == pid]:
            return _found(agents, settings)
        time.sleep(PAUSE)
    raise ValueError(f"process {pid} runs no job")


def _found(agents: list[LocalJob], settings: Settings) -> FoundJob:
    given = (settings.token or None) if settings.auth else ""
    first = agents[0]
    places = tuple(dict.fromkeys(place for agent in agents for place in agent.places))
    if first.tls and not settings.tls:
        settings = replace(settings, tls=True, tls_ca=settings.tls_ca or first.tls_ca)
    token = given if given is not None else first.token
    logs = tuple(agent.logs for agent in agents if agent.logs)
    return FoundJob(first.job, places, token, settings, logs)


def _grouped(agents: list[LocalJob]) -> dict[tuple[str, int], list[LocalJob]]:
    """The agents of each job: jobs that were given no name all have the same one, and not the same port."""
    jobs: dict[tuple[str, int], list[LocalJob]] = {}
    for agent in agents:
        port = agent.places[0].port if agent.places else 0
        jobs.setdefault((agent.job, port), []).append(agent)
    return jobs


def _hosted() -> list[LocalJob]:
    """The jobs whose coordinators run on here after their agents have gone, by what they left; and who answers."""
    records = [record for record in tokens.records() if _answers(record.endpoint)]
    return [LocalJob(each.job, "", 0, (each.endpoint,), each.token) for each in records]


def _answers(endpoint: Endpoint) -> bool:
    """Whether anybody is there: a coordinator that was killed could not take its record back."""
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=1.0):
            return True
    except OSError:
        return False


def _token_at(place: Endpoint) -> str | None:
    """The token of the job of this user that has this port, as its agents or its coordinator left it."""
    told = [agent.token for agent in local_jobs() if any(each.port == place.port for each in agent.places)]
    return told[0] if told else tokens.find(place.port)


def _nowhere(job: str, here: list[list[LocalJob]]) -> str:
    if not here:
        return "no job of yours runs on this machine: give --endpoint HOST:PORT of one of its nodes"
    return f"no job {job!r} runs on this machine, only: {_names(here)}"


def _names(jobs: list[list[LocalJob]]) -> str:
    return ", ".join(f"{agents[0].job} at {agents[0].places[0]}" for agents in jobs if agents[0].places)
