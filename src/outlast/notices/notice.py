"""Which events people are told of, how that is put, and how often."""

from __future__ import annotations

from collections import deque
from urllib.parse import urlsplit

import msgspec

from outlast.events import events
from outlast.events.events import JobEvent, Level
from outlast.events.sentences import sentence

BURST, PER = 10, 300.0  # at most so many notices in so many seconds; how a job ends is always told


class JobNotice(msgspec.Struct, frozen=True):
    """What people are told."""

    kind: str  # "job failed", "job done", "node excluded", "hang" or "straggler"
    level: str
    job: str
    run: str
    time: float
    text: str
    generation: int
    suppressed: int = 0  # notices before this one that were too many


def job_notice(event: JobEvent, *, job: str, run: str, time: float) -> JobNotice | None:
    """The notice of an event, if people should know.

    >>> job_notice(events.NodeExcluded(generation=1, node="b", why="x", seconds=9), job="j", run="r", time=0.0).kind
    'node excluded'
    """
    kind, level = "", Level.WARNING
    if isinstance(event, events.JobOver):
        kind, level = ("job done", Level.INFO) if event.success else ("job failed", Level.ERROR)
    elif isinstance(event, events.NodeExcluded):
        kind = "node excluded"
    elif isinstance(event, events.HangNamed):
        kind, level = "hang", Level.ERROR
    elif isinstance(event, events.StragglerChanged) and event.over is None:
        kind = "straggler"
    if not kind:
        return None
    return JobNotice(kind, level.value, job, run, time, sentence(event), event.generation)


class NoticeLimit:
    """No more than people can read.

    >>> limit = NoticeLimit()
    >>> notice = JobNotice("hang", "error", "j", "r", 0.0, "rank 3 hangs", 1)
    >>> sum(limit.admit(notice, now=1.0) is not None for _ in range(50))
    10
    """

    def __init__(self) -> None:
        self._sent: deque[float] = deque()
        self._suppressed = 0

    def admit(self, notice: JobNotice, now: float) -> JobNotice | None:
        """The notice with how many were left out before it; None: it is one too many itself."""
        while self._sent and self._sent[0] <= now - PER:
            self._sent.popleft()
        if len(self._sent) >= BURST and not notice.kind.startswith("job "):
            self._suppressed += 1
            return None
        self._sent.append(now)
        suppressed, self._suppressed = self._suppressed, 0
        return msgspec.structs.replace(notice, suppressed=suppressed)


def body(notice: JobNotice, *, slack: bool) -> bytes:
    """The request's body: our fields, or Slack's."""
    if not slack:
        return msgspec.json.encode(notice)
    more = f" ({notice.suppressed} notices before it were suppressed)" if notice.suppressed else ""
    # Slack's own escapes; links and mentions that a rank's text may hold stay plain.
    text = notice.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return msgspec.json.encode({"text": f"*{notice.kind}* (job {notice.job}): {text}{more}"})


def is_slack(url: str) -> bool:
    """
    >>> is_slack("https://hooks.slack.com/services/T/B/x"), is_slack("https://example.org/hook")
    (True, False)
    """
    return (urlsplit(url).hostname or "").endswith("hooks.slack.com")


def shown(url: str) -> str:
    """The URL without what may be secret: path, query and password.

    >>> shown("https://me:pw@hooks.slack.com/services/T/B/secret?x=1")
    'https://hooks.slack.com/…'
    """
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}/…"
