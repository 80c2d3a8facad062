"""Every message that an agent, an observer or a coordinator may send."""

from __future__ import annotations

from outlast.protocol.chaos import AskChaos, ChaosBegun, ChaosOrder
from outlast.protocol.checks import Findings, Probe
from outlast.protocol.generations import Halt, Start, Stop
from outlast.protocol.hangs import Agreed, Look, Measure, Named, Seen
from outlast.protocol.logs import AskLogs, LogAnswer, LogQuestion
from outlast.protocol.membership import Ack, Join, Notice, Over, Refuse, Report, Welcome
from outlast.protocol.observers import EventCopies, FollowEvents, Portion, ReadView
from outlast.protocol.paces import Paces
from outlast.protocol.requests import Answer, Ask, DrainRequest
from outlast.protocol.shards import Query, Told
from outlast.protocol.snapshots import Stride
from outlast.protocol.succession import Charter, Resign, Standing

FromAgent = Join | Report | Seen | Paces | Findings | Ask | Query | LogAnswer | ChaosBegun
FromCoordinator = (
    Standing
    | Welcome
    | Charter
    | Ack
    | Start
    | Measure
    | Agreed
    | Probe
    | Notice
    | Look
    | Named
    | Stride
    | Halt
    | Stop
    | Over
    | Refuse
    | Answer
    | Told
    | DrainRequest
    | EventCopies
    | Resign
    | LogQuestion
    | ChaosOrder
)
ToCoordinator = FromAgent | ReadView | FollowEvents | AskLogs | AskChaos
ToAnybody = FromCoordinator | Portion
