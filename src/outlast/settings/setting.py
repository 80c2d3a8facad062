"""One setting as data: its spellings, bounds and help."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from outlast.settings.values import ENV_PREFIX, MOST_SECONDS

Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]


def about(
    description: str,
    *,
    flags: tuple[str, ...] = (),
    switch: tuple[str, str] | None = None,
    off: object = None,
    secret: bool = False,
    masked: bool = False,
) -> msgspec.Meta:
    """Help; plain flags beside `--ft-…`; a flag and the value it stands for; what null means in YAML; never shown.

    A secret has no flag either; what is `masked` has one: there may be a secret in it.
    """
    extra = {"flags": flags, "switch": switch, "off": off, "secret": secret, "masked": masked}
    return msgspec.Meta(description=description, extra=extra)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one setting: read off its field in `Settings`."""

    name: str
    type: Any
    default: Any
    help: str
    expects: str  # completes "must be …"
    aliases: tuple[str, ...] = ()
    switch: tuple[str, str] | None = None
    off: Any = None  # the value that YAML's null stands for; None: it stands for none
    secret: bool = False
    masked: bool = False  # its value is not shown

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return ENV_PREFIX + self.name.upper()

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that set it to the value that follows; none for a secret."""
        if self.secret:
            return ()
        dashed = f"--ft-{self.name.replace('_', '-')}"
        return (*dict.fromkeys([dashed, f"--ft-{self.name}"]), *self.aliases)

    @property
    def switches(self) -> tuple[str, ...]:
        """The spellings of the flag without a value, if there is one."""
        flag = self.switch[0] if self.switch else ""
        return tuple(dict.fromkeys([flag, "--" + flag[2:].replace("-", "_")])) if flag else ()


def expected(kind: Any, metas: list[msgspec.Meta]) -> str:
    """What completes "must be …", of a field with these bounds."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text (in YAML: in quotes)",
    }
    bounds = [
        f"{word} {bound:.10g}"
        for meta in metas
        for word, bound in (("above", meta.gt), ("of at least", meta.ge), ("and at most", meta.le))
        if bound is not None
    ]
    return " ".join([words[kind], *bounds])


def off_value(kind: Any, given: object) -> object:
    """The value that YAML's null stands for."""
    if given is None and kind is str:
        return ""
    return "off" if "off" in get_args(kind) else given
