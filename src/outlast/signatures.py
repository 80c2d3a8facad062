"""Where signatures come from: the files of this package, and one of the user's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import yaml

from outlast.diagnosis.catalogue import Catalogue, Signature, check

PLACE = Path(__file__).parent / "diagnosis" / "signatures"
# libyaml's is ten times as fast, and not in every build of PyYAML.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def catalogue(own: str = "") -> Catalogue:
    """The catalogue: what Outlast knows, and what the file `own` adds or replaces by name.

    Raises ValueError, in one line that names the file and what to change.

    >>> "cuda-out-of-memory" in catalogue().signatures
    True
    """
    known = [signature for path in sorted(PLACE.glob("*.yaml")) for signature in read(path)]
    if not own:
        return Catalogue(known)
    added = read(Path(own))
    try:
        check(added)
        Catalogue(added)  # alone: the error is about this file
    except ValueError as error:
        raise ValueError(f"{own}: {error}") from None
    return Catalogue([*known, *added])


def read(path: Path) -> list[Signature]:
    """The signatures of one file."""
    content = read_yaml(path, "a list of signatures, as `- name: …`")
    found: list[Signature] = []
    for number, entry in enumerate(content, 1):
        try:
            found.append(msgspec.convert(entry, Signature))
        except msgspec.ValidationError as error:
            name = entry.get("name") if isinstance(entry, dict) else None
            raise ValueError(f"{path}: signature {name or f'number {number}'}: {error}") from None
    return found


def read_yaml(path: Path, expected: str) -> list[object]:
    """A YAML file that holds a list. Raises ValueError, in one line."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not a YAML file (not UTF-8 text)") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: is not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(content, list):
        raise ValueError(f"{path}: must hold {expected}")
    return content
