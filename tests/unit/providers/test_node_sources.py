"""What the coordinator asks of whoever gives it nodes, and what becomes of it where a person does."""

from outlast.core.job.commands import NodesWanted, ReleaseNode
from outlast.core.recovery.strategy import FailoverStrategy
from outlast.platforms.plugins import Faulty
from outlast.providers.by_hand import ByHand
from rehearsal import GPU, Rehearsal, failure, running


def test_a_job_with_too_few_nodes_asks_for_the_rest_once() -> None:
    here = Rehearsal(min_nodes=3, max_nodes=3)
    asked = [each for node in "ab" for each in here.join(node) if isinstance(each, NodesWanted)]
    assert asked == [NodesWanted(2, "at least 3 nodes; 1 here: a")]


def test_a_node_that_is_excluded_is_released() -> None:
    commands = running("a", "b", "c", min_nodes=1).end(failure(0, "a", GPU, strategy=FailoverStrategy.NODE))
    assert [each for each in commands if isinstance(each, ReleaseNode)] == [ReleaseNode("a", "the GPU is gone", 1800.0)]


def test_a_faulty_node_is_left_to_plugins_and_one_that_was_sent_away_is_not() -> None:
    told: list[Faulty] = []
    source = ByHand("j", told.append)
    source.want(NodesWanted(1, "at least 2 nodes; 1 here: a"))
    source.release(ReleaseNode("a", "its GPU is gone", 60.0))
    source.release(ReleaseNode("b", "rank 3 asked for it", None))
    assert told == [Faulty("j", "a", "its GPU is gone", 60.0)]
