"""From a file to a `JobSpec`: every mistake is found, one line each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from outlast.jobs.spec import (
    ROLE_NAME,
    JobSpec,
    RayOptions,
    Resources,
    RoleSpec,
    SlurmOptions,
    expects,
    variable_name,
)
from outlast.settings.loading import checked
from outlast.settings.settings import SETTINGS
from outlast.settings.values import nearest, spelled
from outlast.settings.yaml_files import StrictLoader

SECTIONS: dict[str, type[msgspec.Struct]] = {"resources": Resources, "slurm": SlurmOptions, "ray": RayOptions}
# What submit decides itself, and what only a node can know.
NOT_HERE = {
    "token": "leave it out: each job gets one of its own",
    "node_name": "leave it out: each node has its own name",
}


class BadJobFile(ValueError):
    """A job file that cannot be used; `mistakes` has a line for each thing to correct."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


def read(path: str | Path) -> JobSpec:
    """The job in a file; paths in it are relative to the file. Raises `BadJobFile`."""
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=StrictLoader)
    except OSError as error:
        raise BadJobFile([f"{path}: cannot be read ({error.strerror}); give the path of a job file"]) from error
    except UnicodeDecodeError as error:
        raise BadJobFile([f"{path}: is not a YAML file (not UTF-8 text)"]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise BadJobFile([f"{path}: is not valid YAML{where} ({problem})"]) from error
    try:
        spec = parse(content)
    except BadJobFile as bad:
        raise BadJobFile([f"{path}: {mistake}" for mistake in bad.mistakes]) from None
    here = Path(path).absolute().parent
    return msgspec.structs.replace(spec, directory=str((here / spec.directory).resolve()))


def parse(content: object) -> JobSpec:
    """The job that YAML or Python gives as plain data. Raises `BadJobFile`.

    >>> parse({"name": "spirals", "run": "train.py", "nodes": 2}).nodes
    '2'
    """
    if not isinstance(content, Mapping):
        raise BadJobFile(["must hold `name: value` lines, at least `name` and `run`"])
    content = {name: value for name, value in content.items() if value is not None}
    mistakes = [*_mistakes(JobSpec, content, "")]
    settings = content.get("settings", {})
    if isinstance(settings, Mapping):
        mistakes += _wrong_settings(settings)
    if mistakes:
        raise BadJobFile(mistakes)
    spec = msgspec.convert(_plain(content), JobSpec)
    if spec.roles and (spec.nodes != "1" or spec.spares or spec.processes != "1"):
        raise BadJobFile(["roles say how many tasks there are, all on one node: drop nodes, spares and processes"])
    if spec.least_nodes > spec.training_nodes:
        raise BadJobFile([f"nodes must have the lower number first, not {spec.nodes}"])
    return spec


def _mistakes(kind: type[msgspec.Struct], content: Mapping[Any, object], above: str) -> Iterator[str]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name, field in fields.items():
        if field.required and name not in content:
            yield f"{above}{name} is missing: it must be {expects(kind, name)}"
    for name, value in content.items():
        if name not in fields:
            hint = nearest(str(name), fields, otherwise=f"; there are: {', '.join(fields)}")
            yield f"unknown name {above}{name}{hint}"
        elif not above and name in SECTIONS:
            if isinstance(value, Mapping):
                yield from _mistakes(SECTIONS[name], value, f"{name}.")
            else:
                yield f"{name} must be {expects(kind, name)}, not {_shown(value)}"
        elif name == "roles" and isinstance(value, Mapping):
            for role, options in value.items():
                yield from _wrong_role(str(role), options)
        elif name == "env" and isinstance(value, Mapping):
            yield from _wrong_variables(value)
        elif name != "settings" or not isinstance(value, Mapping):
            try:
                msgspec.convert(_texts(value, fields[name].type), fields[name].type)
            except msgspec.ValidationError:
                yield f"{above}{name} must be {expects(kind, name)}, not {_shown(value)}"


def _wrong_role(name: str, options: object) -> Iterator[str]:
    if not re.fullmatch(ROLE_NAME, name):
        yield f"roles: {name!r} cannot be the name of a role: use small letters, digits and dashes, at most 32"
    elif isinstance(options, Mapping):
        yield from _mistakes(RoleSpec, options, f"roles.{name}.")
    else:
        yield f"roles.{name} must be names with values, as `count: 2`, not {_shown(options)}"


def _wrong_variables(variables: Mapping[Any, object]) -> Iterator[str]:
    for name, value in variables.items():
        if not variable_name(str(name)):
            yield f"env: {name!r} cannot be the name of a variable"
        elif str(name) == SETTINGS["token"].env:
            yield f"env.{name}: {NOT_HERE['token']}"
        elif isinstance(value, list | Mapping) or value is None:
            yield f"env.{name} must be text, not {_shown(value)}"
        elif "\n" in str(value) or "\0" in str(value):
            yield f"env.{name} must be one line of text"


def _wrong_settings(settings: Mapping[Any, object]) -> Iterator[str]:
    for name, value in settings.items():
        if name in NOT_HERE:
            yield f"settings.{name}: {NOT_HERE[name]}"
            continue
        try:
            checked({name: value}, "settings")
        except ValueError as error:
            yield str(error)


def _plain(content: Mapping[Any, Any]) -> dict[str, Any]:
    """As the struct wants it: YAML gives numbers where texts are meant, as in `nodes: 2` and `args: [--steps, 400]`."""
    kinds = {field.encode_name: field.type for field in msgspec.structs.fields(JobSpec)}
    plain = {name: _texts(value, kinds[name]) for name, value in content.items()}
    if "roles" in plain:
        own = {field.encode_name: field.type for field in msgspec.structs.fields(RoleSpec)}
        plain["roles"] = {
            str(role): {name: _texts(value, own[name]) for name, value in options.items()}
            for role, options in plain["roles"].items()
        }
    if "env" in plain:
        plain["env"] = {str(name): spelled(value) for name, value in plain["env"].items()}
    if "settings" in plain:
        plain["settings"] = {name: spelled(value) for name, value in checked(plain["settings"], "settings").items()}
    return plain


def _texts(value: Any, kind: Any) -> Any:
    inner = getattr(kind, "__origin__", kind)
    if inner is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if getattr(inner, "__origin__", None) is tuple and isinstance(value, list):
        return [spelled(each) if isinstance(each, bool | int | float) else each for each in value]
    return value


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else spelled(value)
