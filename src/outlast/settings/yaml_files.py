"""Settings in YAML files. A module of its own: most commands read no file, and should not wait for a YAML parser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from outlast.settings.loading import CFG_PATH, SECTION
from outlast.settings.settings import SETTINGS


class StrictLoader(yaml.SafeLoader):
    """YAML that refuses a key that is given twice: PyYAML silently takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping, if each of its keys is there once."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _sections(content: object, above: str = "") -> Iterator[tuple[str, object]]:
    """Every section of ours in a file, with its path."""
    if isinstance(content, dict):
        for name, value in content.items():
            where = f"{above}.{name}" if above else str(name)
            if name == SECTION:
                yield where, value
            else:
                yield from _sections(value, where)


def read_settings(path: str) -> Mapping[Any, object]:
    """The settings in a file: all of it, or its section of ours. Raises ValueError, in one line."""
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=StrictLoader)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); correct --ft-cfg-path or {CFG_PATH}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not a YAML file (not UTF-8 text)") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}: is not valid YAML{where} ({error.problem})") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: is not valid YAML ({' '.join(str(error).split())})") from error
    sections = list(_sections(content))
    if len(sections) > 1:
        places = " and ".join(where for where, _ in sections)
        raise ValueError(f"{path}: has the section {SECTION} more than once ({places}); keep one")
    if sections and isinstance(content, dict):
        # With a section of our own the rest belongs to others, unless it is plainly a misplaced setting.
        for name in content:
            if name in SETTINGS:
                raise ValueError(f"{path}: {name} stands beside the section {SECTION}; move it into it")
        content = sections[0][1]
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{path}: must hold settings as `name: value` lines, not a {type(content).__name__}")
    return content
