"""Every setting once: its default, bounds and help, and from its name the flag, YAML key and variable.

A setting is a field of `Settings`, and nothing else has to be written: `--ft-node-timeout`,
`node_timeout:` and `OUTLAST_NODE_TIMEOUT` follow from `node_timeout`. What is not known is refused
with the nearest name, for a setting that is silently ignored is found only when it was needed.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
import yaml

ENV_PREFIX = "OUTLAST_"
CFG_PATH = "OUTLAST_FT_CFG_PATH"

# Not settings, but ours: Outlast gives them to its workers, and a worker may well start Outlast again.
OWN_VARIABLES = frozenset(
    {
        CFG_PATH,
        "OUTLAST_ARENA",
        "OUTLAST_BOARD",
        "OUTLAST_CHECK",
        "OUTLAST_DESK",
        "OUTLAST_GENERATION",
        "OUTLAST_NODE",
        "OUTLAST_PARTNER",
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

# Bounded, so that no clock, selector or lock has to be asked what it makes of infinity.
MOST_SECONDS = 1e9
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]

# Whatever a script does about them, they end nobody by themselves.
NOT_ENDING = frozenset(
    {
        signal.SIGCHLD,
        signal.SIGCONT,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGURG,
        signal.SIGWINCH,
    }
)


def _about(
    description: str,
    *,
    flags: tuple[str, ...] = (),
    switch: tuple[str, str] | None = None,
    secret: bool = False,
) -> msgspec.Meta:
    """Help; plain flags beside `--ft-…`; a flag without a value and the value it stands for; never shown."""
    return msgspec.Meta(description=description, extra={"flags": flags, "switch": switch, "secret": secret})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be set beyond torchrun's flags. One object, read once, passed down."""

    use_infra_group_rank: Annotated[
        bool,
        _about(
            "Take node ranks from the infrastructure (SLURM_PROCID, then GROUP_RANK) on every generation; "
            "false: survivors keep their ranks and newcomers fill the gaps."
        ),
    ] = True
    node_name: Annotated[str, _about("Name of this node in logs and for ordering; empty: the host name.")] = ""
    node_unit: Annotated[
        int,
        msgspec.Meta(ge=1),
        _about("The world is a multiple of this many nodes.", flags=("--node-unit", "--node_unit")),
    ] = 1
    last_call: Annotated[Seconds, _about("Seconds to wait for more nodes once MIN are there.")] = 3.0
    pend_timeout: Annotated[Seconds, _about("Seconds to wait, below MIN nodes, before the job fails.")] = 600.0
    connect_timeout: Annotated[
        Seconds, _about("Seconds an agent tries to reach the coordinator before it gives up.")
    ] = 60.0
    node_timeout: Annotated[
        float,
        msgspec.Meta(ge=0.1, le=1e9),
        _about(
            "Seconds of silence after which a node counts as lost.",
            flags=("--node-timeout", "--node_timeout"),
        ),
    ] = 3.0
    empty_timeout: Annotated[
        Seconds, _about("Seconds that a coordinator without a single node waits for one before it ends.")
    ] = 10.0
    journal: Annotated[
        str,
        _about(
            "File for the coordinator's journal, which is kept; without it, one in the temporary directory, "
            "removed when the job has ended."
        ),
    ] = ""
    events: Annotated[
        str,
        _about(
            "File to which the coordinator appends one JSON line for each of its decisions, on its own host; "
            "empty: none."
        ),
    ] = ""
    tie_break: Annotated[
        Literal["off", "survivor"],
        _about(
            "'survivor': of two nodes, one alone may go on when it cannot reach the other, whichever it is. "
            "If only the network between them fails, both will."
        ),
    ] = "off"
    restart_grace: Annotated[
        Seconds,
        _about(
            "Seconds between SIGTERM and SIGKILL for workers of a generation that is given up "
            "(job end and drain use --shutdown-timeout)."
        ),
    ] = 0.05
    planned_change_timeout: Annotated[
        Seconds,
        _about(
            "Seconds that a planned change (a node joins or drains, `outlast restart`) waits for all ranks to come to "
            "their next save, so that no step is lost; 0: it does not wait."
        ),
    ] = 20.0
    snapshot_linger: Annotated[
        Seconds,
        _about(
            "Seconds that snapshots in shared memory outlive an agent that was killed, for the next one of its name."
        ),
    ] = 60.0
    replicas: Annotated[
        int,
        msgspec.Meta(ge=0, le=1),
        _about(
            "Copies of each snapshot in the memory of another host, so that it outlives the loss of a node; "
            "0: none, for half of the shared memory."
        ),
    ] = 1
    warm_start: Annotated[
        bool,
        _about(
            "Fork workers from a process that has already imported what they import.",
            flags=("--warm-start", "--warm_start"),
        ),
    ] = True
    warm_preload: Annotated[
        str,
        _about(
            "More modules to import beforehand, as a,b.c; also your own, whose code then stays as it was.",
            flags=("--warm-preload", "--warm_preload"),
        ),
    ] = ""
    warm_cuda: Annotated[
        bool,
        _about(
            "Keep a spare process for each worker that has a CUDA context already; it costs the memory of one.",
            flags=("--warm-cuda", "--warm_cuda"),
        ),
    ] = False
    supervise: Annotated[
        bool,
        _about(
            "Start this node's agent again when it is killed or crashes (`outlast run` alone, not from Python).",
            switch=("--supervise", "true"),
        ),
    ] = False
    hang_detection: Annotated[
        Literal["on", "report", "off"],
        _about(
            "'on': a rank that is late by a time-out that was set or calibrated is ended; with none, one that seems to "
            "hang is reported. 'report': nobody is ended. 'off': nobody looks."
        ),
    ] = "on"
    rank_heartbeat_timeout: Annotated[
        Seconds, _about("Seconds without a heartbeat or step after which a rank hangs; 0: not watched.")
    ] = 0.0
    initial_rank_heartbeat_timeout: Annotated[
        Seconds,
        _about("Seconds from its start in which a rank must give a first sign of life; 0: not watched."),
    ] = 0.0
    rank_section_timeouts: Annotated[
        str,
        _about("Seconds after which a rank hangs in a section, as step:30,checkpoint:600; others are not watched."),
    ] = ""
    rank_out_of_section_timeout: Annotated[
        Seconds, _about("Seconds outside any section after which a rank hangs; 0: not watched.")
    ] = 0.0
    safety_factor: Annotated[
        float,
        msgspec.Meta(ge=1, le=1e6),
        _about("Calibrated time-outs are the longest time that any rank has measured, times this."),
    ] = 5.0
    rank_termination_signal: Annotated[
        str,
        _about("What a rank that hangs is ended with; if it lives a second later, with SIGKILL."),
    ] = "SIGKILL"
    step_hook: Annotated[
        bool,
        _about("Count the steps of torch's optimizers as heartbeats, for scripts that give none."),
    ] = True
    signatures: Annotated[
        str,
        _about("YAML file with signatures of failures of your own, besides those that Outlast knows."),
    ] = ""
    failover: Annotated[
        bool,
        _about(
            "Let the causes of failures and their history decide what is done about them; "
            "false: everything is restarted, until --max-restarts."
        ),
    ] = True
    failover_rules: Annotated[
        str, _about("YAML file with rules about failures, as `- when: {cause: disk-full}`, `then: abortion`.")
    ] = ""
    dynamic_failover_extension: Annotated[
        str,
        _about(
            "package.module::Class, a subclass of outlast.FailoverExtension that decides what is done about failures.",
            flags=("--dynamic-failover-extension", "--dynamic_failover_extension"),
        ),
    ] = ""
    extension_timeout: Annotated[
        float, msgspec.Meta(gt=0, le=3600), _about("Seconds that the extension may take to decide.")
    ] = 5.0
    crash_loop: Annotated[
        int,
        msgspec.Meta(ge=0, le=10**6),
        _about("The same failure this many times without a step of progress ends the job; 0: never."),
    ] = 10
    exclude_for: Annotated[
        Seconds, _about("Seconds that a faulty node is left out before it is tried again; each time for twice as long.")
    ] = 1800.0
    eviction_limit: Annotated[
        int, msgspec.Meta(ge=0, le=10**6), _about("Nodes that may be left out as faulty within an hour.")
    ] = 3
    straggler: Annotated[
        Literal["warn", "exclude", "off"],
        _about(
            "What to do about a rank that is slower than the others while training goes on: say so, "
            "or go on without its node as well, or do not look."
        ),
    ] = "warn"
    straggler_factor: Annotated[
        float,
        msgspec.Meta(ge=1.05, le=1000),
        _about("How much slower than the median a rank has to be, in a section of its own work, to be a straggler."),
    ] = 1.2
    network_check: Annotated[
        bool,
        _about(
            "Check nodes before they are let in: product, memory, collectives with a partner; leave out faulty ones.",
            switch=("--network-check", "true"),
        ),
    ] = False
    exclude_straggler: Annotated[
        bool,
        _about(
            "Leave out nodes that a check finds slow, if MIN nodes are left; else they are only named.",
            switch=("--exclude-straggler", "true"),
        ),
    ] = False
    slow_node_factor: Annotated[
        float,
        msgspec.Meta(gt=1, le=1000),
        _about("A node is slow that is slower than the median by this factor, in any phase of a check."),
    ] = 2.0
    node_check_timeout: Annotated[
        float,
        msgspec.Meta(ge=1, le=86400),
        _about(
            "Seconds that one round of a check may take on a node, once it has begun.",
            flags=("--node-check-timeout", "--node_check_timeout"),
        ),
    ] = 60.0
    comm_perf_test: Annotated[
        bool,
        _about("Measure collectives of several sizes in checks.", switch=("--comm-perf-test", "true")),
    ] = False
    accelerator: Annotated[
        str,
        _about(
            "What checks try: auto, cpu, cuda, ascend, xpu, or a plug-in's name.",
            flags=("--accelerator",),
        ),
    ] = "auto"
    check_path: Annotated[
        str, _about("Directory, as that of checkpoints, whose disk checks try; empty: none is tried.")
    ] = ""
    verdict: Annotated[
        str,
        _about("File for the verdict on a failed job, as JSON; empty: verdict.json beside the job's logs."),
    ] = ""
    store_ports: Annotated[str, _about("Ports for the workers' store, as 29600-29700; empty: any free one.")] = ""
    auth: Annotated[
        bool,
        _about("Nodes must prove that they know the job's token.", switch=("--no-auth", "false")),
    ] = True
    token: Annotated[
        str,
        _about("The job's secret, of 16 characters or more; from YAML or OUTLAST_TOKEN alone.", secret=True),
    ] = ""
    tls: Annotated[bool, _about("Encrypt what agents and coordinator say to each other.", switch=("--tls", "true"))] = (
        False
    )
    tls_cert: Annotated[str, _about("Path of the coordinator's certificate (PEM); empty: one is made for the job.")] = (
        ""
    )
    tls_key: Annotated[str, _about("Path of the private key of tls_cert (PEM).")] = ""
    tls_ca: Annotated[
        str, _about("Path of the CA certificates (PEM) to verify the coordinator's certificate with.")
    ] = ""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _about("How much Outlast itself logs.")] = "info"

    def shown(self) -> dict[str, Any]:
        """The settings as they may be printed: of a secret, only whether it is set."""
        values = msgspec.structs.asdict(self)
        return {name: _public(SETTINGS[name], value) for name, value in values.items()}

    # The generated one would carry the token into every log line and traceback that shows the settings.
    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.shown().items())})"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one setting: read off its field in `Settings`."""

    name: str
    type: Any
    default: Any
    help: str
    expects: str  # completes "must be …"
    aliases: tuple[str, ...] = ()
    switch: tuple[str, str] | None = None
    secret: bool = False

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


class Reference(NamedTuple):
    """One line of the settings' reference page."""

    name: str
    flag: str
    env: str
    default: str
    help: str


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
        _from_file(path or environ.get(CFG_PATH)),
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


def reference() -> Iterator[Reference]:
    """Every setting as the reference page lists it."""
    for setting in SETTINGS.values():
        flag = ", ".join([*setting.flags[:1], *setting.aliases[:1], *(setting.switch or ())[:1]])
        default = _public(setting, setting.default)
        yield Reference(setting.name, flag, setting.env, spelled(default), setting.help)


def spelled(value: object) -> str:
    """A value as a flag, a variable or YAML would spell it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def ports(text: str) -> range:
    """The ports that `store_ports` allows; none said, none in it."""
    if not text:
        return range(0)
    low, _, high = text.partition("-")
    if not (low.isdecimal() and (high or low).isdecimal()) or text.endswith("-"):
        raise ValueError(f"must be ports as 29600-29700, not {text!r}")
    first, last = int(low), int(high or low)
    if not 1 <= first <= last <= 65535:
        raise ValueError(f"must be ports from 1 to 65535, the lower one first, not {text!r}")
    if first == last:
        raise ValueError(f"must be two ports or more, for each generation has another than the last, not {text!r}")
    return range(first, last + 1)


def section_timeouts(text: str) -> dict[str, float]:
    """The time-outs that `rank_section_timeouts` gives, by section.

    >>> section_timeouts("step:30, checkpoint:600")
    {'step': 30.0, 'checkpoint': 600.0}
    """
    found: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, number = part.rpartition(":")
        name = name.strip()
        try:
            seconds = float(number)
        except ValueError:
            seconds = 0.0
        if not name or not 0 < seconds <= MOST_SECONDS:
            raise ValueError(f"must be seconds by section, as step:30,checkpoint:600, not {part!r}")
        if name in found:
            raise ValueError(f"gives section {name!r} two time-outs")
        found[name] = seconds
    return found


def termination_signal(text: str) -> signal.Signals:
    """The signal of this name.

    >>> termination_signal("term").name
    'SIGTERM'
    """
    name = text.strip().upper()
    found = signal.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
    if found is None or found in NOT_ENDING:
        raise ValueError(f"must be a signal that can end a process, as SIGTERM or SIGKILL, not {text!r}")
    return found


def truth(text: str) -> bool | None:
    """What a word says about a switch; None if it says nothing."""
    word = text.strip().lower()
    if word in ("true", "1", "yes", "on"):
        return True
    return False if word in ("false", "0", "no", "off") else None


def nearest(name: str, valid: Iterable[str], *, otherwise: str = "") -> str:
    """The end of an error line about an unknown name: the nearest valid one, if any is near."""
    # What all names of a kind begin with would make each of them look near.
    prefix = next((each for each in ("--ft-", ENV_PREFIX) if name.startswith(each)), "")
    by_rest = {each[len(prefix) :].lower(): each for each in valid if each.startswith(prefix)}
    found = difflib.get_close_matches(name[len(prefix) :].lower(), by_rest, n=1)
    return f"; did you mean {by_rest[found[0]]}?" if found else otherwise


def _from_file(path: str | None) -> Iterator[_Given]:
    if not path:
        return
    for name, value in _read_yaml(path).items():
        if name not in SETTINGS:
            hint = nearest(str(name), SETTINGS, otherwise="; `outlast config` lists all settings")
            raise ValueError(f"{path}: unknown setting {name!r}{hint}")
        yield _Given(name, value, path, f"{path}: {name}")


def _read_yaml(path: str) -> Mapping[Any, object]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
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
    if isinstance(content, dict) and "fault_tolerance" in content:
        # With a section of our own the rest belongs to others, unless it is plainly a misplaced setting.
        for name in content:
            if name in SETTINGS:
                raise ValueError(f"{path}: {name} stands beside the section fault_tolerance; move it into it")
        content = content["fault_tolerance"]
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{path}: must hold settings as `name: value` lines, not a {type(content).__name__}")
    return content


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
    """A value of YAML's own as a flag would give it: there, `off` is a switch, and time-outs may be a table."""
    if isinstance(value, bool) and {"on", "off"} & set(get_args(setting.type)):
        return "on" if value else "off"
    if isinstance(value, dict) and setting.name == "rank_section_timeouts":
        return ",".join(f"{name}:{seconds}" for name, seconds in value.items())
    return value


def _check_tls(settings: Settings, origins: Mapping[str, str]) -> None:
    for name in ("tls_cert", "tls_key", "tls_ca"):
        if getattr(settings, name) and not settings.tls:
            raise ValueError(f"{name} is set ({origins[name]}) but TLS is off; add --tls or drop {name}")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        there, missing = ("tls_cert", "tls_key") if settings.tls_cert else ("tls_key", "tls_cert")
        raise ValueError(f"{there} is set ({origins[there]}) without {missing}; give both or neither")


def _public(setting: Setting, value: object) -> object:
    if setting.secret:
        return "set" if value else "not set"
    return value


def _quoted(value: object) -> str:
    if value is None:
        return "nothing"
    return repr(value) if isinstance(value, str) else spelled(value)


def _expects(kind: Any, metas: list[msgspec.Meta]) -> str:
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


def _settings() -> Iterator[Setting]:
    for field in msgspec.structs.fields(Settings):
        kind, *metas = get_args(field.type)
        about = metas[-1]
        yield Setting(
            name=field.name,
            # The bounds are part of a number's type; text and switches stand alone, to be told apart.
            type=field.type if kind in (int, float) else kind,
            default=field.default,
            help=about.description,
            expects=_expects(kind, metas),
            aliases=about.extra["flags"],
            switch=about.extra["switch"],
            secret=about.extra["secret"],
        )


# What a text has to be beyond a text; each raises ValueError with the rest of the line.
CHECKS: dict[str, Callable[[str], object]] = {
    "store_ports": ports,
    "rank_section_timeouts": section_timeouts,
    "rank_termination_signal": termination_signal,
}
SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _settings()}
