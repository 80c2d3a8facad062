"""The flags that there are: torchrun's and ours.

torch is not imported, so torchrun's flags are written down here; a test holds them against torch's own parser.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from outlast.settings.loading import refusal
from outlast.settings.setting import Setting
from outlast.settings.settings import SETTINGS
from outlast.settings.values import nearest, truth

STATIC_PORT = 29500
HELP = frozenset({"-h", "--help"})
# What people type, by what they mean: no spelling distance finds these.
MEANT = {"--nprocs": "--nproc-per-node", "--num-processes": "--nproc-per-node", "--num-nodes": "--nnodes"}


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line that name the nearest flag."""

    def error(self, message: str) -> NoReturn:
        """Ends with exit code 2 and one line; argparse would print two screens of usage above it."""
        self.exit(2, f"{self.prog}: error: {message}\n")

    def format_help(self) -> str:
        """The help with a usage of one line; argparse's has every flag, which is a screen and a half."""
        words = [each for each in self._actions if not each.option_strings and each.help is not argparse.SUPPRESS]
        self.usage = f"{self.prog} [flags]" + "".join(f" {each.metavar or each.dest.upper()}" for each in words)
        return super().format_help()

    def unknown(self, flag: str) -> NoReturn:
        """Refuses a flag that does not exist."""
        name = flag.partition("=")[0]
        dashed = [flag for flag in self._option_string_actions if "_" not in flag]
        typed = name.replace("_", "-")
        if MEANT.get(typed) in dashed:
            self.error(f"unknown flag {name}; did you mean {MEANT[typed]}?")
        hint = nearest(typed, dashed, otherwise=f"; see {self.prog} --help")
        self.error(f"unknown flag {name}{hint}")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parses the flags of a command that runs no script."""
        args, unknown = self.parse_known_args(self._switched([*argv, ""])[:-1])
        if unknown:
            self.unknown(unknown[0])
        return args

    def read(self, argv: Sequence[str], namespace: argparse.Namespace) -> argparse.Namespace:
        """Parses flags, the script, and what follows it untouched.

        Left to itself argparse also looks at the script's own arguments: a `--ft` or `--n` among them is then
        refused as an ambiguous abbreviation of ours.
        """
        at, argv = 0, self._switched(argv)
        while at < len(argv) and _is_flag(argv[at]):
            at += 2 if self._takes_next(argv[at]) else 1
        end = at + 2 if argv[at : at + 1] == ["--"] else at + 1
        if len(argv) < end and not HELP & set(argv[:at]):
            self.error("no script to run; give one after the flags, as in `outlast run train.py`")
        args = self.parse_args(argv[:end], namespace)
        args.training_script_args = list(argv[end:])
        return args

    def _switched(self, argv: Sequence[str]) -> list[str]:
        """The same command line with `=true` or `=false` after each on-off setting.

        argparse would take whatever follows such a flag for its value, even the script.
        """
        spelled, rest = [], list(argv)
        while rest and _is_flag(rest[0]):
            arg = rest.pop(0)
            action = self._action_of(arg)
            if isinstance(action, SettingAction) and action.setting.type is bool and "=" not in arg:
                # A word that is last is the script: there has to be one.
                value = rest.pop(0) if len(rest) > 1 and truth(rest[0]) is not None else "true"
                arg = f"{arg}={value}"
            spelled.append(arg)
            if self._takes_next(arg) and rest:
                spelled.append(rest.pop(0))
        return spelled + rest

    def _action_of(self, arg: str) -> argparse.Action:
        name = arg.partition("=")[0]
        if name in self._option_string_actions:
            return self._option_string_actions[name]
        actions: list[argparse.Action] = [each[0] for each in self._get_option_tuples(name)]
        return actions[0] if actions else self.unknown(arg)

    def _takes_next(self, arg: str) -> bool:
        attached = "=" in arg or (not arg.startswith("--") and len(arg) > 2)
        return self._action_of(arg).nargs is None and not attached

    # What abbreviates one of torchrun's flags under torchrun does so here, whatever flags of ours begin alike.
    def _get_option_tuples(self, option_string: str) -> Any:
        found = super()._get_option_tuples(option_string)
        return [each for each in found if not isinstance(each[0], SettingAction)] or found


class SettingAction(argparse.Action):
    """Keeps (flag, value) by the setting's name, so that the last one wins and the origin is as typed."""

    def __init__(self, *, setting: Setting, negates: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.setting = setting
        self.negates = negates

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Keeps the value; refuses a secret, which the process list would show."""
        if self.setting.secret:
            parser.error(f"{option_string}: {refusal(self.setting)}")
        word = truth(str(values))
        if self.negates and word is not None:
            values = "false" if word else "true"
        given = (option_string, values)
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), self.setting.name: given})


def add_settings(parser: argparse.ArgumentParser, only: Collection[str] = tuple(SETTINGS)) -> None:
    """Adds `--ft-cfg-path`, `--ft-<name>` for every setting, or for these, and the plain flags of some."""
    group = parser.add_argument_group("Outlast's settings")
    group.add_argument(
        "--ft-cfg-path",
        "--ft-cfg_path",
        help="YAML file with settings, flat or in a section fault_tolerance (OUTLAST_FT_CFG_PATH).",
    )
    for setting in map(SETTINGS.__getitem__, only):
        common: dict[str, Any] = {"action": SettingAction, "setting": setting, "dest": "settings", "default": {}}
        if setting.secret:
            group.add_argument(f"--ft-{setting.name}", f"--{setting.name}", help=argparse.SUPPRESS, **common)
            continue
        text = f"{setting.help} ({setting.env})".replace("%", "%%")
        # `Parser` gives a flag of an on-off setting its value; for argparse, and its help, it is optional.
        value: dict[str, Any] = (
            {"nargs": "?", "const": "true", "metavar": "true|false"} if setting.type is bool else {"metavar": "VALUE"}
        )
        group.add_argument(*setting.flags, help=text, **value, **common)
        if setting.switch:
            _, means = setting.switch
            text = f"Sets {setting.name} to {means}."
            group.add_argument(*setting.switches, help=text, negates=means == "false", **value, **common)


def given_settings(args: argparse.Namespace) -> dict[str, str]:
    """The settings' flags as `outlast.settings.load` takes them."""
    return dict(args.settings.values())


def parser(environ: Mapping[str, str] = os.environ) -> Parser:
    """The parser of `outlast run`: every flag of torchrun's, with the same defaults and PET_ variables, and ours."""
    parser = Parser(prog="outlast run", description="Runs a training script as torchrun does, and keeps it alive.")
    _add_torchrun(parser, environ)
    add_settings(parser)
    parser.add_argument("training_script", type=str, help="The script (or module, or program) to run.")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="Its own arguments.")
    return parser


def _add_torchrun(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    group = parser.add_argument_group("torchrun's flags (each but the last two also as PET_<NAME>)")

    def variable(flag: str) -> str:
        return "PET_" + flag.lstrip("-").replace("-", "_").upper()

    def spellings(flag: str) -> list[str]:
        return list(dict.fromkeys([flag, "--" + flag[2:].replace("-", "_")]))

    def value(flag: str, default: Any, text: str, *, short: tuple[str, ...] = (), **kwargs: Any) -> None:
        # argparse puts a default through `type` only where it is text: the variable's, as torchrun does.
        default = environ.get(variable(flag), default)
        group.add_argument(*short, *spellings(flag), default=default, help=text, **{"type": str, **kwargs})

    def switch(flag: str, text: str, *, short: tuple[str, ...] = ()) -> None:
        word = environ.get(variable(flag), "0")
        try:
            default = bool(int(word))
        except ValueError:
            raise ValueError(f"{variable(flag)} must be 0 or 1, not {word!r}") from None
        group.add_argument(*short, *spellings(flag), action="store_true", default=default, help=text)

    value("--nnodes", "1:1", "Number of nodes, or MIN:MAX.")
    value("--nproc-per-node", "1", "Workers per node: a number, auto, cpu, gpu, xpu.")
    value("--rdzv-backend", "static", "static or c10d; either way the nodes meet at Outlast's coordinator.")
    value(
        "--rdzv-endpoint",
        "",
        "HOST:PORT of the node that hosts the coordinator; after commas, where it may move later.",
    )
    value("--rdzv-id", "none", "Name of the job.")
    value("--rdzv-conf", "", "More as KEY=VALUE,…: torchrun's keys, or settings of Outlast.")
    switch("--standalone", "A job on this machine alone: endpoint and job name are chosen for you.")
    value("--max-restarts", 0, "How often workers may be restarted before the job fails.", type=int)
    value("--monitor-interval", 0.1, "Accepted, without effect: nothing is polled.", type=float)
    value("--start-method", "spawn", "Accepted, without effect.", choices=["spawn", "fork", "forkserver"])
    value("--event-log-handler", "null", "Name of a registered event logging handler.")
    value(
        "--role",
        "default",
        "Role of the workers, as logs name it; NAME=COUNT[,OPTION=VALUE…] adds a role with tasks of its own.",
        action=RoleAction,
    )
    switch("--module", "Run the script as a module, as python -m does.", short=("-m",))
    switch("--no-python", "Run the script as a program of its own, without python.")
    switch("--run-path", "Run the script, given as an absolute path, with runpy.run_path.")
    value("--log-dir", None, "Directory for log files; each run makes one of its own in it.")
    value("--redirects", "0", "Streams into files: 1 out, 2 err, 3 both; or per rank, 0:1,1:2.", short=("-r",))
    value("--tee", "0", "Streams into files and to the console; as --redirects.", short=("-t",))
    value("--local-ranks-filter", "", "Show only these local ranks on the console, as 0,1.")
    for name in ("stdout", "stderr"):
        value(
            f"--duplicate-{name}-filters",
            [],
            f"Also write lines of {name} that contain one of these to one file; ,, is a comma.",
            type=_comma_separated,
        )
    value("--node-rank", 0, "Rank of this node; static only, where 0 hosts the coordinator.", type=int)
    value("--master-addr", "127.0.0.1", "Address of node 0; static only.")
    value("--master-port", None, f"Port on node 0; static only; {STATIC_PORT} if not given.", type=int)
    value("--local-addr", None, "Address of this node, as others reach it.")
    value("--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "Signals that end the workers too.")
    value("--shutdown-timeout", None, "Seconds between SIGTERM and SIGKILL at the end; 30.", type=int)
    switch("--virtual-local-rank", "LOCAL_RANK is 0 everywhere; each worker sees its own GPU as device 0.")
    group.add_argument(*spellings("--logs-specs"), type=str, help="Name of a torchrun.logs_specs entry point.")
    group.add_argument(
        *spellings("--numa-binding"),
        choices=["node", "socket", "exclusive", "core-complex"],
        type=str,
        help="Bind each worker to CPUs near its GPU.",
    )


class RoleAction(argparse.Action):
    """`--role trainer` is torchrun's; each `--role worker=2` is one role of a job whose tasks are not alike."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        _flag: str | None = None,
    ) -> None:
        if "=" in value:
            namespace.roles = [*getattr(namespace, "roles", []), value]
        else:
            namespace.role = value


def _is_flag(arg: str) -> bool:
    return arg.startswith("-") and arg not in ("-", "--")


def _comma_separated(text: str) -> list[str]:
    return [item.replace("\0", ",") for item in text.replace(",,", "\0").split(",")]
