"""Where settings come from: a file, the environment, `--rdzv-conf` and flags, each stronger than the one before.

An unknown name is an error that suggests the nearest valid one: a setting that is silently ignored is found only
when it was needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from outlast.settings.setting import Setting
from outlast.settings.settings import CHECKS, SETTINGS, Settings
from outlast.settings.values import ENV_PREFIX, nearest, spelled, truth

CFG_PATH = "OUTLAST_FT_CFG_PATH"
SECTION = "fault_tolerance"  # of a YAML file that is not ours alone

# Not settings, but ours: Outlast gives them to its workers, and a worker may well start Outlast again.
OWN_VARIABLES = frozenset(
    {
        CFG_PATH,
        "OUTLAST_ARENA",
        "OUTLAST_BOARD",
        "OUTLAST_CHAOS",
        "OUTLAST_CLUSTER",
        "OUTLAST_CHECK",
        "OUTLAST_DESK",
        "OUTLAST_GENERATION",
        "OUTLAST_LIFE",
        "OUTLAST_NODE",
        "OUTLAST_PARTNER",
        "OUTLAST_PROBE",
        "OUTLAST_ROLE",
        "OUTLAST_TASK",
        "OUTLAST_WORKER_GROUP",
    }
)

# What torchrun's backends read from --rdzv-conf, in our words.
CONF_NAMES = {
    "last_call_timeout": "last_call",
    "join_timeout": "pend_timeout",
    "timeout": "pend_timeout",
    "read_timeout": "connect_timeout",
}
# And what they read that has nothing to do here: taken, so that a command line need not be changed.
CONF_IGNORED = frozenset(
    {
        "ca_cert",
        "cacert",
        "cert",
        "close_timeout",
        "etcd_prefix",
        "heartbeat",
        "heartbeat_timeout",
        "keep_alive_interval",
        "keep_alive_max_attempt",
        "key",
        "protocol",
        "rank",
        "ssl_cert",
        "ssl_cert_key",
        "store_type",
        "use_agent_store",
    }
)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The effective settings, and where each came from: `default`, a file, a variable or a flag."""

    settings: Settings
    origins: dict[str, str]


class _Given(NamedTuple):
    """One value from one source. `subject` is what an error line is about."""

    name: str
    value: object
    origin: str
    subject: str


def load(
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    path: str | None,
    conf: Mapping[str, str] | None = None,
) -> Loaded:
    """Settles every setting: flag over `--rdzv-conf` over environment over YAML file over default.

    `flags` maps flags, as they are typed, to the values they give (`{"--ft-last-call": "5"}`); `conf` is what
    `--rdzv-conf` says, torchrun's keys included. `path` is the YAML file; else OUTLAST_FT_CFG_PATH names it.
    Raises ValueError, in one line that names the source, for what is unknown or wrong; also in a source that
    another one overrides.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(SETTINGS, "default")
    for source in (
        _from_file(environ.get(CFG_PATH) if path is None else path, given=path is not None),
        _from_environ(environ),
        _from_conf(conf or {}),
        _from_flags(flags),
    ):
        for given in source:
            values[given.name] = _convert(given)
            origins[given.name] = given.origin
    settings = Settings(**values)
    _check_tls(settings, origins)
    return Loaded(settings=settings, origins=origins)


def _from_file(path: str | None, *, given: bool) -> Iterator[_Given]:
    if not path:
        if given:
            raise ValueError("--ft-cfg-path is empty: give the path of a YAML file, or drop the flag")
        return
    from outlast.settings.yaml_files import read_settings

    for name, value in read_settings(path).items():
        if name not in SETTINGS:
            known = [*SETTINGS, SECTION] if isinstance(value, dict) else SETTINGS
            hint = nearest(str(name), known, otherwise="; `outlast config` lists all settings")
            raise ValueError(f"{path}: unknown setting {name!r}{hint}")
        yield _Given(name, value, path, f"{path}: {name}")


def checked(values: Mapping[Any, object], where: str) -> dict[str, object]:
    """Settings that a file of another kind gives, in a section `where`. Raises ValueError for the first mistake.

    >>> checked({"node_timeout": 5}, "settings")
    {'node_timeout': 5.0}
    """
    for name in values:
        if name not in SETTINGS:
            hint = nearest(str(name), SETTINGS, otherwise="; `outlast config` lists all settings")
            raise ValueError(f"{where}: unknown setting {name!r}{hint}")
    return {name: _convert(_Given(name, value, where, f"{where}.{name}")) for name, value in values.items()}


def _from_environ(environ: Mapping[str, str]) -> Iterator[_Given]:
    by_env = {setting.env: name for name, setting in SETTINGS.items()}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in OWN_VARIABLES:
            continue
        if variable not in by_env:
            hint = nearest(variable, [*by_env, CFG_PATH], otherwise="; unset it")
            raise ValueError(f"environment: unknown variable {variable}{hint}")
        # As in the shell's ${NAME:-default}: empty is as good as not set.
        if text:
            yield _Given(by_env[variable], text, variable, variable)


def _from_conf(conf: Mapping[str, str]) -> Iterator[_Given]:
    for key, text in conf.items():
        if key in CONF_IGNORED:
            continue
        name = CONF_NAMES.get(key, key)
        if name not in SETTINGS:
            hint = nearest(key, [*SETTINGS, *CONF_NAMES, *CONF_IGNORED, "is_host"])
            raise ValueError(f"--rdzv-conf: unknown key {key!r}{hint}")
        if SETTINGS[name].secret:
            raise ValueError(f"--rdzv-conf: {refusal(SETTINGS[name])}")
        yield _Given(name, text, "--rdzv-conf", f"--rdzv-conf: {key}")


def _from_flags(flags: Mapping[str, str]) -> Iterator[_Given]:
    by_flag = {flag: name for name, setting in SETTINGS.items() for flag in (*setting.flags, *setting.switches)}
    for flag, text in flags.items():
        if flag not in by_flag:
            raise ValueError(f"command line: unknown flag {flag}{nearest(flag, by_flag)}")
        yield _Given(by_flag[flag], text, flag, flag)


def refusal(setting: Setting) -> str:
    """Why a secret is not taken from the command line, and what to do instead."""
    return (
        f"a {setting.name} on the command line is visible to everybody in the process list; "
        f"set {setting.env} or the file's {setting.name} instead"
    )


def _convert(given: _Given) -> object:
    setting = SETTINGS[given.name]
    value = _as_written(setting, given.value)
    if isinstance(value, str):
        if setting.type is bool:
            word = truth(value)
            value = value if word is None else word
        elif get_origin(setting.type) is Literal:
            value = value.lower()
        elif setting.type is not str:
            value = value.strip()
    try:
        # Text comes as text from flags, variables and quoted YAML; anything else must be of the right type.
        converted = msgspec.convert(value, setting.type, strict=not isinstance(value, str))
    except msgspec.ValidationError:
        got = "" if setting.secret else f", not {_quoted(given.value)}"
        raise ValueError(f"{given.subject} must be {setting.expects}{got}") from None
    try:
        if setting.name in CHECKS:
            CHECKS[setting.name](converted)
        if setting.secret and 0 < len(converted) < 16:
            raise ValueError(f"has {len(converted)} characters; give it 16 or more")
    except ValueError as error:
        raise ValueError(f"{given.subject} {error}") from None
    return converted


def _as_written(setting: Setting, value: object) -> object:
    """A value of YAML's own as a flag would give it: there, `off` is a bool, null is off, and a table may be given."""
    if value is None and not setting.secret:
        return setting.off
    if isinstance(value, bool) and {"on", "off"} & set(get_args(setting.type)):
        return "on" if value else "off"
    if isinstance(value, dict) and setting.name == "rank_section_timeouts":
        return ",".join(f"{name}:{seconds}" for name, seconds in value.items() if seconds is not None)
    return value


def _check_tls(settings: Settings, origins: Mapping[str, str]) -> None:
    for name in ("tls_cert", "tls_key", "tls_ca"):
        if getattr(settings, name) and not settings.tls:
            raise ValueError(f"{name} is set ({origins[name]}) but TLS is off; add --tls or drop {name}")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        there, missing = ("tls_cert", "tls_key") if settings.tls_cert else ("tls_key", "tls_cert")
        raise ValueError(f"{there} is set ({origins[there]}) without {missing}; give both or neither")


def _quoted(value: object) -> str:
    if value is None:
        return "nothing"
    return repr(value) if isinstance(value, str) else spelled(value)
