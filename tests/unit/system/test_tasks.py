"""Tasks have an owner that waits for them, and hears of those that fail."""

from __future__ import annotations

import asyncio
from typing import Any

from outlast.system.tasks import Tasks


async def forever(ends: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)  # to clean up may take a moment
        ends.append("cleaned up")


async def fails() -> None:
    raise ValueError("no use")


def test_cancelled_tasks_are_waited_for_until_they_have_cleaned_up() -> None:
    async def play() -> None:
        ends: list[str] = []
        errors: list[BaseException] = []
        tasks = Tasks(errors.append)
        running = [tasks.start(forever(ends)) for _ in range(3)]
        await asyncio.sleep(0)
        await tasks.cancel()
        assert ends == ["cleaned up"] * 3
        assert all(task.cancelled() for task in running)
        assert not errors

    asyncio.run(play())


def test_those_that_are_started_while_the_owner_waits_are_waited_for_too() -> None:
    async def play() -> None:
        seen: list[str] = []
        tasks = Tasks()

        async def first() -> None:
            await asyncio.sleep(0)
            tasks.start(second())

        async def second() -> None:
            await asyncio.sleep(0)
            seen.append("second")

        tasks.start(first())
        await tasks.wait()
        assert seen == ["second"]

    asyncio.run(play())


def test_the_owner_hears_of_a_failure_and_the_others_go_on() -> None:
    async def play() -> None:
        error: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        tasks = Tasks(error.set_result)
        other = tasks.start(forever([]))
        tasks.start(fails())
        assert str(await error) == "no use"
        assert not other.done()
        await tasks.cancel()

    asyncio.run(play())


def test_a_failure_that_nobody_asked_for_is_logged_at_once() -> None:
    async def play() -> None:
        heard: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        tasks = Tasks()
        tasks.start(fails())
        await tasks.wait()
        assert [str(context["exception"]) for context in heard] == ["no use"]

    asyncio.run(play())
