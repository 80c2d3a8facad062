"""Watching a job from outside: the client of a coordinator's view and events, and what commands show of them.

Whoever watches takes no part in the job: nothing in here can slow it down or end it, unless it asks and may.
"""

from outlast.observe.client import EventGap, Observer, ObserverRefused
from outlast.observe.finding import FoundJob, NoJobHere, locate
from outlast.observe.past import PastJob

__all__ = ["EventGap", "FoundJob", "NoJobHere", "Observer", "ObserverRefused", "PastJob", "locate"]
