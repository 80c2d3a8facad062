"""`--role NAME=COUNT,…`: the roles of a job whose tasks are not alike."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from outlast.jobs.spec import ROLE_NAME
from outlast.protocol.roles import RestartScope, TaskRole
from outlast.settings.values import MOST_GROWTH, memory_bytes, nearest, truth

OPTIONS = ("restart", "restarts", "ends", "memory", "max-memory", "run")

MOST_TASKS = 4096

# What the roles that TensorFlow knows need: a parameter server takes the variables with it when it dies.
DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "chief": {"restart": "task", "ends": "yes"},
    "worker": {"restart": "task"},
    "ps": {"restart": "job"},
    "evaluator": {"restart": "task"},
}


def roles_of(texts: Sequence[str], command_of: Callable[[Sequence[str]], tuple[str, ...]]) -> tuple[TaskRole, ...]:
    """The roles that these flags ask for. `command_of`: from a script and its arguments to what is started.

    Raises ValueError in one line.
    """
    roles = tuple(_role(text, command_of) for text in texts)
    names = [role.name for role in roles]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--role: there are two roles {name!r}; give each another name")
    if sum(role.count for role in roles) > MOST_TASKS:
        raise ValueError(f"--role: {sum(role.count for role in roles)} tasks are more than {MOST_TASKS}; ask for fewer")
    return roles


def _role(text: str, command_of: Callable[[Sequence[str]], tuple[str, ...]]) -> TaskRole:
    head, _, rest = text.partition(",")
    name, _, count = head.partition("=")
    if not re.fullmatch(ROLE_NAME, name) or not count.isdecimal() or not 1 <= int(count) <= MOST_TASKS:
        raise ValueError(f"--role must be NAME=COUNT, as worker=2, not {head!r}")
    given = _options(name, rest)
    asked = {**DEFAULTS.get(name, {}), **given}
    scope = _scope(name, asked.get("restart", "task"))
    if scope is RestartScope.JOB and "restarts" in given:
        raise ValueError(
            f"--role {name}: restarts counts restarts of this role alone, and with restart=job all restart together; "
            "drop it, and give --max-restarts"
        )
    memory = _memory(name, "memory", asked.get("memory", ""))
    most = _memory(name, "max-memory", asked.get("max-memory", "")) or MOST_GROWTH * memory
    if most < memory or (most and not memory):
        raise ValueError(f"--role {name}: max-memory is the most that memory may grow to; give memory, and no more")
    return TaskRole(
        name=name,
        count=int(count),
        command=command_of(_words(name, asked["run"])) if "run" in asked else (),
        restart=scope,
        restarts=_number(name, asked.get("restarts", "3")),
        ends=_switch(name, asked.get("ends", "no")),
        memory=memory,
        max_memory=most,
    )


def _options(name: str, text: str) -> dict[str, str]:
    """Options by name; `run=` is the last, and takes the rest of the text."""
    found: dict[str, str] = {}
    while text:
        option, equals, after = text.partition("=")
        if option not in OPTIONS or not equals:
            hint = nearest(option, OPTIONS, otherwise=f"; there are: {', '.join(OPTIONS)}")
            raise ValueError(f"--role {name}: unknown option {option!r}{hint}")
        value, _, text = (after, "", "") if option == "run" else after.partition(",")
        if option in found:
            raise ValueError(f"--role {name}: {option} is given twice; drop one")
        found[option] = value
    return found


def _scope(name: str, text: str) -> RestartScope:
    if text not in [scope.value for scope in RestartScope]:
        raise ValueError(f"--role {name}: restart must be task, role or job, not {text!r}")
    return RestartScope(text)


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) > 2**31 - 1:
        raise ValueError(f"--role {name}: restarts must be a whole number, 0 or more, not {text!r}")
    return int(text)


def _switch(name: str, text: str) -> bool:
    value = truth(text)
    if value is None:
        raise ValueError(f"--role {name}: ends must be yes or no, not {text!r}")
    return value


def _words(name: str, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"--role {name}: run={text} cannot be read ({error}); mind the quotes") from None
    if not words:
        raise ValueError(f"--role {name}: run must name a script, and may give its arguments")
    return words


def _memory(name: str, option: str, text: str) -> int:
    try:
        return memory_bytes(text)
    except ValueError as error:
        raise ValueError(f"--role {name}: {option} {error}") from None
