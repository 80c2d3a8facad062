"""Which nodes `outlast scale --slurm` asks for, and which it gives back."""

from outlast.providers.slurm_growth import AddedNodes, Growth, growth, parse


def test_what_is_on_its_way_is_not_asked_for_again() -> None:
    waiting = [AddedNodes("7", 1), AddedNodes("8", 1, ("c",))]  # c has started, and has not joined yet
    assert growth(4, ["a", "b"], waiting) == Growth()


def test_the_nodes_of_the_job_itself_stay() -> None:
    assert growth(1, ["a", "b"], []) == Growth()


def test_what_came_last_goes_first_and_the_queue_before_nodes() -> None:
    added = [AddedNodes("7", 1, ("c",)), AddedNodes("8", 1, ("d",)), AddedNodes("9", 1)]
    assert growth(2, ["a", "c", "d"], added) == Growth(cancel=("9",), drain=("d",))


def test_a_job_of_several_nodes_is_given_back_only_as_a_whole() -> None:
    assert growth(2, ["a", "c", "d"], [AddedNodes("7", 2, ("c", "d"))]) == Growth()


def test_other_peoples_comments_and_jobs_that_end_do_not_count() -> None:
    listed = "8|COMPLETING|1|c|outlast-joins-7\n9|RUNNING|2|gpu[1-2]|outlast-joins-7\n10|RUNNING|1|e|outlast-joins-70\n"
    assert parse(listed, "7") == [AddedNodes("9", 2, ("gpu1", "gpu2"))]
