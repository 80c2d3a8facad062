"""The command line: every flag of torchrun's, meaning what it means there, and ours beside them."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import run as torchrun

from outlast.cli import main as program
from outlast.cli.flags import parser
from outlast.cli.request import parse
from outlast.launch import Endpoint, Launch, Std
from outlast.settings.settings import SETTINGS

HELP = ("-h", "--help")


@pytest.fixture(autouse=True, scope="module")
def no_pet_variables():
    """torch's parser reads the process's own environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("PET_", "OUTLAST_"))]:
            patch.delenv(name)
        yield


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    return "train.py"


def launch(*argv: str, environ: Mapping[str, str] | None = None) -> Launch:
    return parse(argv, {"PATH": os.environ["PATH"], **(environ or {})})[0]


def flags_of(flags: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {option: action for action in flags._actions for option in action.option_strings}


def torch_flags() -> dict[str, argparse.Action]:
    return {option: action for option, action in flags_of(torchrun.get_args_parser()).items() if option not in HELP}


def test_no_flag_of_torchrun_is_missing_or_different() -> None:
    ours = flags_of(parser({}))
    for option, theirs in torch_flags().items():
        assert option in ours
        mine = ours[option]
        for what in ("dest", "default", "nargs", "choices", "required"):
            assert getattr(mine, what) == getattr(theirs, what), (option, what)
        if isinstance(theirs.type, type):
            assert mine.type is theirs.type, option


def test_the_script_and_its_arguments_are_positional_as_in_torchrun() -> None:
    def positional(flags: argparse.ArgumentParser) -> list[tuple[str, object]]:
        return [(action.dest, action.nargs) for action in flags._actions if not action.option_strings]

    assert positional(parser({})) == positional(torchrun.get_args_parser())


def test_our_own_flags_are_these_and_a_new_one_is_a_decision() -> None:
    ours = set(flags_of(parser({}))) - set(torch_flags()) - set(HELP)
    assert ours == {
        *("--ft-cfg-path", "--ft-cfg_path"),
        *("--ft-token-file", "--ft-token_file"),
        *("--ft-planned-change-timeout", "--ft-planned_change_timeout"),
        "--ft-replicas",
        *("--ft-snapshot-linger", "--ft-snapshot_linger"),
        *("--ft-shm-reserve", "--ft-shm_reserve"),
        *("--ft-worker-memory", "--ft-worker_memory"),
        *("--ft-max-worker-memory", "--ft-max_worker_memory"),
        *("--ft-use-infra-group-rank", "--ft-use_infra_group_rank"),
        *("--ft-node-name", "--ft-node_name"),
        "--ft-submitted",
        *("--ft-node-unit", "--ft-node_unit", "--node-unit", "--node_unit"),
        *("--ft-last-call", "--ft-last_call"),
        *("--ft-pend-timeout", "--ft-pend_timeout"),
        *("--ft-connect-timeout", "--ft-connect_timeout"),
        *("--ft-node-timeout", "--ft-node_timeout", "--node-timeout", "--node_timeout"),
        *("--ft-empty-timeout", "--ft-empty_timeout"),
        "--ft-journal",
        "--ft-events",
        "--ft-webhook",
        *("--ft-token-file", "--ft-token_file"),
        *("--ft-dashboard", "--dashboard"),
        *("--ft-dashboard-port", "--ft-dashboard_port"),
        "--ft-progress",
        *("--ft-tie-break", "--ft-tie_break"),
        *("--ft-restart-grace", "--ft-restart_grace"),
        *("--ft-snapshot-linger", "--ft-snapshot_linger"),
        *("--ft-restart-policy", "--ft-restart_policy"),
        *("--ft-supervise", "--supervise"),
        *("--ft-in-place-timeout", "--ft-in_place_timeout"),
        *("--ft-warm-start", "--ft-warm_start", "--warm-start", "--warm_start"),
        *("--ft-warm-cuda", "--ft-warm_cuda", "--warm-cuda", "--warm_cuda"),
        *("--ft-warm-preload", "--ft-warm_preload", "--warm-preload", "--warm_preload"),
        *("--ft-warm-join", "--ft-warm_join"),
        *("--ft-hang-detection", "--ft-hang_detection"),
        *("--ft-rank-heartbeat-timeout", "--ft-rank_heartbeat_timeout"),
        *("--ft-initial-rank-heartbeat-timeout", "--ft-initial_rank_heartbeat_timeout"),
        *("--ft-rank-section-timeouts", "--ft-rank_section_timeouts"),
        *("--ft-rank-out-of-section-timeout", "--ft-rank_out_of_section_timeout"),
        *("--ft-safety-factor", "--ft-safety_factor"),
        *("--ft-rank-termination-signal", "--ft-rank_termination_signal"),
        *("--ft-step-hook", "--ft-step_hook"),
        "--ft-signatures",
        "--ft-verdict",
        "--ft-failover",
        *("--ft-failover-rules", "--ft-failover_rules"),
        *("--ft-dynamic-failover-extension", "--ft-dynamic_failover_extension"),
        *("--dynamic-failover-extension", "--dynamic_failover_extension"),
        *("--ft-extension-timeout", "--ft-extension_timeout"),
        *("--ft-crash-loop", "--ft-crash_loop"),
        *("--ft-exclude-for", "--ft-exclude_for"),
        *("--ft-eviction-limit", "--ft-eviction_limit"),
        "--ft-straggler",
        *("--ft-straggler-factor", "--ft-straggler_factor"),
        *("--ft-store-ports", "--ft-store_ports"),
        *("--ft-allow-chaos", "--ft-allow_chaos", "--allow-chaos", "--allow_chaos"),
        *("--ft-network-check", "--ft-network_check", "--network-check", "--network_check"),
        *("--ft-exclude-straggler", "--ft-exclude_straggler", "--exclude-straggler", "--exclude_straggler"),
        *("--ft-slow-node-factor", "--ft-slow_node_factor"),
        *("--ft-node-check-timeout", "--ft-node_check_timeout", "--node-check-timeout", "--node_check_timeout"),
        *("--ft-comm-perf-test", "--ft-comm_perf_test", "--comm-perf-test", "--comm_perf_test"),
        *("--ft-accelerator", "--accelerator"),
        *("--ft-check-path", "--ft-check_path"),
        *("--ft-auth", "--no-auth", "--no_auth"),
        *("--ft-token", "--token"),  # both refused
        *("--ft-tls", "--tls"),
        *("--ft-tls-cert", "--ft-tls_cert"),
        *("--ft-tls-key", "--ft-tls_key"),
        *("--ft-tls-ca", "--ft-tls_ca"),
        *("--ft-log-level", "--ft-log_level"),
    }


def test_every_abbreviation_that_torchrun_takes_means_the_same_here() -> None:
    theirs, ours = torchrun.get_args_parser(), parser({})
    seen = 0
    for option in torch_flags():
        for length in range(3, len(option)):
            abbreviation = option[:length]
            meant = theirs._get_option_tuples(abbreviation)
            if option.startswith("--") and len(meant) == 1:
                found = ours._get_option_tuples(abbreviation)
                assert [each[0].dest for each in found] == [meant[0][0].dest], abbreviation
                seen += 1
    assert seen > 50


VALUES = {int: st.integers(-9, 99).map(str), float: st.floats(0, 9).map(str)}
WORDS = st.text("abc019:,=/.", min_size=1, max_size=6)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    argv: list[str] = []
    for option in draw(st.lists(st.sampled_from(sorted(torch_flags())), max_size=6)):
        action = torch_flags()[option]
        if action.nargs == 0:
            argv.append(option)
            continue
        values = st.sampled_from(action.choices) if action.choices else VALUES.get(action.type, WORDS)
        value = draw(values)
        if option == "--role":
            value = value.replace("=", ".")  # NAME=COUNT is ours
        argv += [f"{option}={value}"] if option.startswith("--") and draw(st.booleans()) else [option, value]
    return [*argv, "train.py", *draw(st.lists(WORDS, max_size=3))]


@given(command_lines())
def test_both_parsers_read_the_same_from_any_command_line(argv: list[str]) -> None:
    theirs = vars(torchrun.get_args_parser().parse_args(argv))
    ours = vars(parser({}).read(argv, argparse.Namespace()))
    assert {name: ours[name] for name in theirs} == theirs


@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from(["--ft", "--n", "--tls", "-h", "--", "--nnodes=0"]))))
def test_the_scripts_own_arguments_are_left_alone(rest: list[str]) -> None:
    args = parser({}).read(["--nnodes", "2", "-t3", "train.py", *rest], argparse.Namespace())
    assert (args.nnodes, args.tee, args.training_script) == ("2", "3", "train.py")
    assert args.training_script_args == rest


def test_two_dashes_end_the_flags() -> None:
    args = parser({}).read(["--nnodes=2", "--", "-odd.py", "--", "x"], argparse.Namespace())
    assert (args.training_script, args.training_script_args) == ("-odd.py", ["--", "x"])


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PET_NNODES", "1:4"),
        ("PET_NPROC_PER_NODE", "3"),
        ("PET_MAX_RESTARTS", "7"),
        ("PET_MONITOR_INTERVAL", "2.5"),
        ("PET_RDZV_ENDPOINT", "a:1"),
        ("PET_MASTER_PORT", "1234"),
        ("PET_NODE_RANK", "2"),
        ("PET_DUPLICATE_STDOUT_FILTERS", "a,,b,c"),
        ("PET_STANDALONE", "1"),
        ("PET_STANDALONE", "0"),
        ("PET_MODULE", "2"),
        ("PET_NO_PYTHON", "1"),
        ("PET_LOGS_SPECS", "ignored"),
        ("PET_NUMA_BINDING", "ignored"),
    ],
)
def test_a_pet_variable_is_a_default_as_in_torchrun(variable: str, value: str, monkeypatch) -> None:
    monkeypatch.setenv(variable, value)
    theirs = vars(torchrun.get_args_parser().parse_args(["train.py"]))
    ours = vars(parser().read(["train.py"], argparse.Namespace()))
    assert {name: ours[name] for name in theirs} == theirs


def test_a_flag_beats_its_pet_variable(script: str) -> None:
    environ = {"PET_NPROC_PER_NODE": "3", "PET_MAX_RESTARTS": "5"}
    asked = launch("--nproc_per_node=2", script, environ=environ)
    assert (asked.nproc, asked.max_restarts) == (2, 5)


def test_a_pet_switch_that_is_no_number_is_named(script: str) -> None:
    with pytest.raises(ValueError, match="PET_STANDALONE must be 0 or 1, not 'yes'"):
        launch(script, environ={"PET_STANDALONE": "yes"})


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["no script to run", "outlast run train.py"]),
        (["--standalone"], ["no script to run"]),
        (["--nnodes=2", "--"], ["no script to run"]),
        (["--nprocs-per-node=2", "train.py"], ["--nprocs-per-node", "did you mean --nproc-per-node?"]),
        (["--nprocs_per_node", "2", "train.py"], ["did you mean --nproc-per-node?"]),
        (["--ft-node-timout=2", "train.py"], ["did you mean --ft-node-timeout?"]),
        (["--zzzzzz", "train.py"], ["unknown flag --zzzzzz", "outlast run --help"]),
        (["--nprocs=2", "train.py"], ["unknown flag --nprocs", "did you mean --nproc-per-node?"]),
        (["--num_nodes=2", "train.py"], ["unknown flag --num_nodes", "did you mean --nnodes?"]),
        (["--max-restarts=many", "train.py"], ["--max-restarts", "many"]),
        (["--start-method=teleport", "train.py"], ["--start-method", "teleport"]),
        (["--ft-token=0123456789abcdef", "train.py"], ["--ft-token", "process list", "OUTLAST_TOKEN"]),
        (["--token", "0123456789abcdef", "train.py"], ["--token", "process list", "OUTLAST_TOKEN"]),
    ],
)
def test_a_command_line_that_cannot_be_read_ends_with_2_and_one_line(argv, words, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv, {})
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("outlast run: error: ")
    assert line.count("\n") == 1
    assert "0123456789abcdef" not in line
    for word in words:
        assert word in line


def test_help_needs_no_script(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"], {})
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "--nproc-per-node" in printed
    assert "OUTLAST_NODE_TIMEOUT" in printed
    assert "--ft-token " not in printed


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--nnodes=3:2"], ["--nnodes=3:2", "--nnodes=2:3"]),
        (["--nnodes=0"], ["--nnodes", "1 node or more"]),
        (["--nnodes=0:2"], ["--nnodes", "1 node or more"]),
        (["--nnodes=two"], ["--nnodes", "MIN:MAX"]),
        (["--nnodes=1:2:3"], ["--nnodes", "MIN:MAX"]),
        (["--nnodes=-1"], ["--nnodes", "MIN:MAX"]),
        (["--max-restarts=-1"], ["--max-restarts", "-1"]),
        (["--no-python", "-m"], ["--no-python", "--module"]),
        (["--redirects=4"], ["--redirects", "'4'"]),
        (["--redirects=0:1,1"], ["--redirects"]),
        (["--tee=both"], ["--tee"]),
        (["--local-ranks-filter=0,x"], ["--local-ranks-filter"]),
        (["--local-ranks-filter=-1"], ["--local-ranks-filter"]),
        (["--signals-to-handle=SIGTERM,SIGTREM"], ["SIGTREM", "did you mean SIGTERM?"]),
        (["--signals-to-handle=sigterm"], ["did you mean SIGTERM?"]),
        (["--signals-to-handle="], ["--signals-to-handle"]),
        (["--signals-to-handle=SIGKILL"], ["SIGKILL cannot be handled"]),
        (["--signals-to-handle=SIGSTOP"], ["SIGSTOP cannot be handled"]),
        (["--rdzv-backend=etcd", "--rdzv-endpoint=a:1"], ["needs no etcd", "--rdzv-endpoint host:port"]),
        (["--rdzv-backend=etcd-v2", "--rdzv-endpoint=a:1"], ["needs no etcd"]),
        (["--rdzv-backend=zeus", "--rdzv-endpoint=a:1"], ["--rdzv-backend", "'zeus'"]),
        (["--rdzv-backend=c10d", "--nnodes=2"], ["--nnodes=2", "--rdzv-endpoint host:port"]),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=a:b"], ["--rdzv-endpoint", "'a:b'"]),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=a:70000"], ["--rdzv-endpoint", "65535"]),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=http://a:80"], ["--rdzv-endpoint"]),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=:80"], ["--rdzv-endpoint", "not a host"]),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=::1"], ["--rdzv-endpoint", "[::1]"]),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=[::zz]:80"], ["--rdzv-endpoint", "[::1]"]),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=a:0", "--nnodes=2"], ["--rdzv-endpoint", "port 0"]),
        (["--rdzv-endpoint=a b:1", "--nnodes=2"], ["--rdzv-endpoint", "not a host"]),
        (["--master-port=70000"], ["--master-port", "70000"]),
        (["--master-port=-1"], ["--master-port", "-1"]),
        (["--master-addr=a/b", "--master-port=1"], ["--master-addr"]),
        (["--node-rank=-1", "--nnodes=2"], ["--node-rank", "-1"]),
        (["--standalone", "--nnodes=2"], ["--standalone", "--nnodes=2"]),
        (["--node-unit=2", "--nnodes=3"], ["--node-unit", "--nnodes=3:3"]),
        (["--node_unit=4", "--nnodes=5:7"], ["--node_unit", "--nnodes=5:7"]),
        (["--run-path"], ["--run-path", "absolute", "/train.py"]),
        (["--log-dir=train.py"], ["--log-dir", "is a file"]),
        (["--log-dir=train.py/deeper"], ["--log-dir", "is a file"]),
        (["--shutdown-timeout=-1"], ["--shutdown-timeout", "-1"]),
        (["--nproc-per-node=0"], ["--nproc-per-node", "1 or more"]),
        (["--nproc-per-node=-2"], ["--nproc-per-node", "1 or more"]),
        (["--nproc-per-node=1.5"], ["--nproc-per-node", "'1.5'"]),
        (["--nproc-per-node="], ["--nproc-per-node"]),
        (["--rdzv-conf=last_call"], ["--rdzv-conf", "KEY=VALUE", "'last_call'"]),
        (["--rdzv-conf==3"], ["--rdzv-conf", "KEY=VALUE"]),
        (["--rdzv-conf=jion_timeout=3"], ["--rdzv-conf", "did you mean join_timeout?"]),
        (["--rdzv-conf=is_host=perhaps"], ["is_host", "'perhaps'"]),
        (["--rdzv-conf=is_hots=1"], ["did you mean is_host?"]),
        (["--rdzv-conf=token=0123456789abcdef"], ["process list", "OUTLAST_TOKEN"]),
        (["--standalone", "--rdzv-conf=is_host=0"], ["is_host=0", "--rdzv-endpoint"]),
        (["--logs-specs=absent"], ["--logs-specs", "'absent'"]),
        (["--ft-last-call=soon"], ["--ft-last-call", "'soon'"]),
        (["--ft-cfg-path=absent.yaml"], ["absent.yaml", "cannot be read"]),
        (["--ft-cfg-path="], ["--ft-cfg-path is empty", "drop the flag"]),
        (["--ft-restart-policy=all"], ["--ft-restart-policy", "any-failed", "min-healthy", "'all'"]),
        (["--supervise=perhaps"], ["--supervise", "true or false", "'perhaps'"]),
        (["--no-auth=perhaps"], ["--no-auth", "true or false", "'perhaps'"]),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_in_one_line(argv, words, script: str) -> None:
    with pytest.raises(ValueError) as caught:
        launch(*argv, script)
    line = str(caught.value)
    assert "\n" not in line
    for word in words:
        assert word in line


def test_a_unit_from_elsewhere_is_named_by_its_source(script: str) -> None:
    with pytest.raises(ValueError, match="OUTLAST_NODE_UNIT: no multiple of node_unit 2"):
        launch("--nnodes=1", script, environ={"OUTLAST_NODE_UNIT": "2"})


def test_a_script_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no script .*/absent\.py; correct the path, or give -m"):
        launch("absent.py")
    with pytest.raises(ValueError, match=r"no script /absent\.py"):
        launch("--run-path", "/absent.py")


def test_a_module_need_not_be_a_file() -> None:
    assert launch("-m", "json.tool").command == (sys.executable, "-u", "-m", "json.tool")


def test_a_module_is_looked_for_where_the_workers_python_would(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no module 'trainer'; correct its name or PYTHONPATH, or drop -m"):
        launch("-m", "trainer.main")
    (tmp_path / "elsewhere" / "trainer").mkdir(parents=True)
    assert launch("-m", "trainer.main", environ={"PYTHONPATH": "elsewhere"}).entrypoint == "trainer.main"
    (tmp_path / "trainer.py").touch()
    assert launch("-m", "trainer").entrypoint == "trainer"


def test_another_pythons_modules_are_its_own_business() -> None:
    assert launch("-m", "trainer.main", environ={"PYTHON_EXEC": "/bin/sh"}).entrypoint == "trainer.main"


def test_a_script_that_python_cannot_start_is_refused(script: str, monkeypatch) -> None:
    Path("package").mkdir()
    with pytest.raises(ValueError, match=r"/package is a directory without a __main__\.py"):
        launch("package")
    Path("package", "__main__.py").touch()
    assert launch("package").entrypoint == "package"
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=r"the script .*/train\.py cannot be read; chmod"):
        launch(script)


@pytest.mark.parametrize("name", ["a" * 200 + "/" + "b" * 200, "tab\tname", "new\nline", os.fsdecode(b"not\xffutf8")])
def test_a_script_may_have_any_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / name / "train.py"
    path.parent.mkdir(parents=True)
    path.touch()
    assert launch(str(path)).command[2:] == (str(path),)


def test_a_program_must_be_there_and_executable(script: str) -> None:
    with pytest.raises(ValueError, match="no program 'absent-program'"):
        launch("--no-python", "absent-program")
    with pytest.raises(ValueError, match=r"'train\.py' is not executable; chmod"):
        launch("--no-python", script)
    Path(script).chmod(0o755)
    with pytest.raises(ValueError, match=r"'train\.py' is not on PATH; give \./train\.py"):
        launch("--no-python", script)
    assert launch("--no-python", f"./{script}", "x").command == ("./train.py", "x")


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(
    "argv",
    [
        ["train.py", "--lr", "1", "${local_rank}"],
        ["-m", "json.tool", "--lr", "1"],
        ["--no-python", "echo", "hello", "-m"],
    ],
)
def test_workers_are_run_with_the_command_that_torchrun_would_run(argv: list[str], monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    args = torchrun.parse_args(argv)
    args.master_port = 29500
    _, program, rest = torchrun.config_from_args(args)
    assert launch(*argv).command == (program, *rest)


def test_run_path_runs_the_script_inside_the_workers_python(script: str) -> None:
    path = str(Path(script).absolute())
    asked = launch("--run-path", "--no-python", path, "x")
    assert asked.command == (sys.executable, "-u", "-m", "outlast.worker.run_path", path, "x")
    assert asked.entrypoint == path


def test_another_python_may_be_named(script: str, tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    assert launch(script, environ={"PYTHON_EXEC": str(other)}).command == (str(other), "-u", script)
    with pytest.raises(ValueError, match="PYTHON_EXEC=/absent/python: no such program"):
        launch(script, environ={"PYTHON_EXEC": "/absent/python"})


@pytest.mark.parametrize(
    "argv",
    [[], ["--nnodes=1"], ["--standalone"], ["--standalone", "--rdzv-backend=etcd", "--rdzv-id=x"], ["--node-rank=0"]],
)
def test_a_job_on_one_machine_gets_a_free_port_and_a_name_of_its_own(argv: list[str], script: str) -> None:
    one, other = launch(*argv, script), launch(*argv, script)
    assert (one.endpoint, one.host, one.node_rank) == (Endpoint("127.0.0.1", 0), True, None)
    assert uuid.UUID(one.job) != uuid.UUID(other.job)


@pytest.mark.parametrize(
    ("argv", "endpoint", "host", "node_rank"),
    [
        (["--nnodes=2"], Endpoint("127.0.0.1", 29500), None, None),
        (["--nnodes=2", "--node-rank=0"], Endpoint("127.0.0.1", 29500), True, 0),
        (["--nnodes=2", "--node_rank=1", "--master_addr=n0"], Endpoint("n0", 29500), False, 1),
        (["--nnodes=1:2", "--master-port=1234"], Endpoint("127.0.0.1", 1234), None, None),
        (["--master-port=0"], Endpoint("127.0.0.1", 0), True, None),
        (["--nnodes=2", "--master-addr=[::1]", "--master-port=1"], Endpoint("::1", 1), None, None),
        (["--nnodes=2", "--rdzv-endpoint=n0:7"], Endpoint("n0", 7), None, None),
        (["--nnodes=2", "--rdzv-endpoint=n0"], Endpoint("n0", 29500), None, None),
        (["--rdzv-backend=c10d"], Endpoint("127.0.0.1", 0), True, None),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"], Endpoint("localhost", 0), True, None),
        (["--rdzv-backend=c10d", "--nnodes=2", "--rdzv-endpoint=n0"], Endpoint("n0", 29400), None, None),
        (
            ["--rdzv-backend=c10d", "--nnodes=2", "--rdzv-endpoint=n0:7", "--node-rank=1"],
            Endpoint("n0", 7),
            None,
            None,
        ),
        (
            ["--rdzv-backend=c10d", "--nnodes=2", "--rdzv-endpoint=n0:7", "--rdzv-conf=is_host=1"],
            Endpoint("n0", 7),
            True,
            None,
        ),
        (
            ["--nnodes=2", "--rdzv-endpoint=n0:7", "--rdzv-conf=is_host=False", "--node-rank=0"],
            Endpoint("n0", 7),
            False,
            0,
        ),
    ],
)
def test_where_nodes_meet_and_who_hosts(argv, endpoint, host, node_rank, script: str) -> None:
    asked = launch("--rdzv-id=job7", *argv, script)
    assert (asked.job, asked.endpoint, asked.host, asked.node_rank) == ("job7", endpoint, host, node_rank)


@pytest.mark.parametrize(
    ("argv", "endpoint", "store_port"),
    [
        (["--master-port=1234", "--master-addr=n0"], Endpoint("127.0.0.1", 0), 1234),
        (["--master-port=0"], Endpoint("127.0.0.1", 0), 0),
        (["--master-port=1234", "--standalone"], Endpoint("127.0.0.1", 0), 0),
        (["--master-port=1234", "--rdzv-backend=c10d"], Endpoint("127.0.0.1", 0), 0),
        (["--master-port=1234", "--rdzv-endpoint=n0:7"], Endpoint("n0", 7), 0),
        (["--master-port=1234", "--nnodes=2"], Endpoint("127.0.0.1", 1234), 0),
    ],
)
def test_the_master_port_of_a_single_node_is_the_stores(argv, endpoint, store_port, script: str) -> None:
    asked = launch(*argv, script)
    assert (asked.endpoint, asked.store_port) == (endpoint, store_port)


def test_a_node_rank_from_the_environment_counts_as_given(script: str) -> None:
    asked = launch("--nnodes=2", script, environ={"PET_NODE_RANK": "0"})
    assert (asked.node_rank, asked.host) == (0, True)


@pytest.mark.parametrize("text", ["n0", "n0:80", "10.0.0.1:80", "[::1]", "[::1]:80", "fe80::1:80", "[fe80::1]:0"])
def test_endpoints_are_read_as_torch_reads_them(text: str, script: str) -> None:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    asked = launch("--rdzv-backend=c10d", f"--rdzv-endpoint={text}", script)
    assert (asked.endpoint.host, asked.endpoint.port) == parse_rendezvous_endpoint(text, 29400)


def test_rendezvous_conf_reaches_the_settings(script: str) -> None:
    conf = "--rdzv-conf=is_host=1, timeout=20,last_call_timeout=4,keep_alive_interval=5,node_timeout=6"
    _, loaded = parse(["--nnodes=2", conf, "--ft-node-timeout=7", script], {})
    assert (loaded.settings.pend_timeout, loaded.settings.last_call, loaded.settings.node_timeout) == (20, 4, 7)
    assert loaded.origins["last_call"] == "--rdzv-conf"
    assert loaded.origins["node_timeout"] == "--ft-node-timeout"


@pytest.mark.parametrize(
    ("argv", "value", "origin"),
    [
        (["--node-timeout=5", "--ft-node-timeout=6", "--node_timeout=7"], 7.0, "--node_timeout"),
        (["--ft-node_timeout", "6", "--node-timeout", "5"], 5.0, "--node-timeout"),
        (["--node-timeout", "5", "--ft-node-ti", "6"], 6.0, "--ft-node-timeout"),
    ],
)
def test_the_last_of_two_flags_for_one_setting_wins(argv, value, origin, script: str) -> None:
    _, loaded = parse([*argv, script], {})
    assert (loaded.settings.node_timeout, loaded.origins["node_timeout"]) == (value, origin)


def test_switches_and_the_settings_behind_them(script: str) -> None:
    _, loaded = parse(["--no-auth", "--tls", "--ft-use-infra-group-rank=False", script], {})
    assert (loaded.settings.auth, loaded.settings.tls, loaded.settings.use_infra_group_rank) == (False, True, False)
    assert (loaded.origins["auth"], loaded.origins["tls"]) == ("--no-auth", "--tls")
    _, loaded = parse(["--no-auth", "--ft-auth=true", script], {})
    assert loaded.settings.auth is True


SWITCHES = [
    (flag, setting.name, bool(setting.switch and flag in setting.switches and setting.switch[1] == "false"))
    for setting in SETTINGS.values()
    if setting.type is bool
    for flag in (*setting.flags, *setting.switches)
]


@pytest.mark.parametrize(("flag", "name", "negates"), SWITCHES)
def test_every_on_off_flag_works_alone_with_equals_and_with_a_word(
    flag: str, name: str, negates: bool, script: str
) -> None:
    for argv, means in (
        ([flag], True),
        ([f"{flag}=true"], True),
        ([f"{flag}=off"], False),
        ([flag, "yes"], True),
        ([flag, "0"], False),
    ):
        asked, loaded = parse([*argv, script, "--x"], {})
        assert getattr(loaded.settings, name) is (means is not negates)
        assert loaded.origins[name] == flag
        assert asked.command[2:] == (script, "--x")


def test_a_word_that_nothing_follows_is_the_script() -> None:
    asked, loaded = parse(["--no-python", "--supervise", "true"], {"PATH": os.environ["PATH"]})
    assert (asked.command, loaded.settings.supervise) == (("true",), True)


def test_an_abbreviated_on_off_flag_does_not_swallow_the_script(script: str) -> None:
    asked, loaded = parse(["--ft-warm-c", script], {})
    assert (asked.entrypoint, loaded.settings.warm_cuda) == (script, True)


@pytest.mark.parametrize(
    "conf", ["'timeout=20,last_call_timeout=4'", '"timeout=20,last_call=4"', "timeout='20',last_call=\"4\""]
)
def test_rendezvous_conf_may_be_quoted(conf: str, script: str) -> None:
    settings = parse([f"--rdzv-conf={conf}", script], {})[1].settings
    assert (settings.pend_timeout, settings.last_call) == (20, 4)


@pytest.mark.parametrize("policy", ["any-failed", "min-healthy"])
def test_the_restart_policies_of_nvidia_resiliency_ext_are_accepted(script: str, policy: str) -> None:
    assert parse([f"--ft-restart-policy={policy}", script], {})[1].settings.restart_policy == policy


@pytest.mark.parametrize("argv", [["--nproc-per-node=2", "t.py"], ["-m", "train"], ["train.py"]])
def test_outlast_without_a_command_suggests_outlast_run(argv: list[str], capsys) -> None:
    assert program(argv) == 2
    assert capsys.readouterr().err == f"outlast: error: no command {argv[0]!r}; did you mean `outlast run …`?\n"


def test_a_file_is_read_before_flags(script: str) -> None:
    Path("ft.yaml").write_text("fault_tolerance:\n  node_timeout: 9\n  last_call: 8\n")
    _, loaded = parse(["--ft-cfg-path", "ft.yaml", "--ft-last-call=1", script], {})
    assert (loaded.settings.node_timeout, loaded.settings.last_call) == (9, 1)


def test_cpu_means_one_worker_for_every_cpu_that_we_may_use(script: str) -> None:
    assert launch("--nproc-per-node=cpu", script).nproc == len(os.sched_getaffinity(0))


def test_auto_asks_torch_and_agrees_with_torchrun(script: str) -> None:
    asked, _ = parse(["--nproc-per-node=auto", script], os.environ)
    assert asked.nproc == torchrun.determine_local_world_size("auto")


@pytest.mark.parametrize(
    ("kind", "says", "words"),
    [
        ("gpu", "echo 0", "torch sees no gpu"),
        ("xpu", "echo 0", "torch sees no xpu"),
        ("npu", "echo unknown", "must be a number, auto, cpu, gpu or xpu, not 'npu'"),
        ("gpu", "echo 'No module named torch' >&2; exit 1", "could not be asked for devices .No module named torch."),
    ],
)
def test_devices_that_are_not_there_are_refused(kind: str, says: str, words: str, script: str) -> None:
    with pytest.raises(ValueError, match=words):
        launch(f"--nproc-per-node={kind}", script, environ={"PYTHON_EXEC": stand_in(says)})


def test_devices_are_counted_by_the_workers_python(script: str) -> None:
    python = stand_in("echo some library says hello; echo 8")
    assert launch("--nproc-per-node=gpu", script, environ={"PYTHON_EXEC": python}).nproc == 8


def stand_in(says: str) -> str:
    """A Python that says this whatever it is asked, so that no torch has to be imported."""
    path = Path("python").absolute()
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return str(path)


def test_threads_are_chosen_only_for_several_workers_whose_user_has_not(script: str) -> None:
    assert launch("--nproc-per-node=2", script).omp_default is True
    assert launch("--nproc-per-node=1", script).omp_default is False
    assert launch("--nproc-per-node=2", script, environ={"OMP_NUM_THREADS": "4"}).omp_default is False


@pytest.mark.parametrize("text", ["0", "1", "2", "3", "0:1,1:2", "0:3", "3:0,2:1"])
def test_streams_are_read_as_torch_reads_them(text: str, script: str) -> None:
    from torch.distributed.elastic.multiprocessing import Std as TorchStd

    logs = launch("--redirects", text, "--tee", text, script).logs
    assert logs.redirects == logs.tee == TorchStd.from_str(text)


def test_logs_are_as_asked(script: str) -> None:
    logs = launch(
        *["--log-dir=logs/new", "-r", "3", "-t0:1,12:2", "--local-ranks-filter=0,2"],
        *["--duplicate-stdout-filters=a,,b,c", script],
        environ={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}]"},
    ).logs
    assert (logs.log_dir, logs.redirects, logs.tee) == ("logs/new", Std.ALL, {0: Std.OUT, 12: Std.ERR})
    assert (logs.ranks, logs.stdout_filters, logs.stderr_filters) == (frozenset({0, 2}), ("a,b", "c"), ())
    assert (logs.prefix, logs.specs) == ("[${rank}]", None)
    assert not Path("logs").exists(), "reading flags makes nothing"


def test_signals_may_be_named_with_spaces(script: str) -> None:
    asked = launch("--signals-to-handle=SIGTERM, SIGUSR1", script)
    assert asked.signals == (signal.SIGTERM.name, signal.SIGUSR1.name)


def test_shutdown_timeout_is_the_flag_or_torchs_variable_or_30(script: str) -> None:
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
    assert launch(script).shutdown_timeout == 30
    assert launch(script, environ=environ).shutdown_timeout == 7
    assert launch("--shutdown-timeout=0", script, environ=environ).shutdown_timeout == 0
    with pytest.raises(ValueError, match="TORCH_ELASTIC_SHUTDOWN_TIMEOUT must be"):
        launch(script, environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "long"})


def test_what_is_only_passed_on_is_passed_on(script: str) -> None:
    asked = launch(
        *["--nnodes=2:4", "--node-unit=2", "--role=trainer", "--local-addr=n1", "--max-restarts=3"],
        *["--numa-binding=node", "--virtual-local-rank", "--event-log-handler=console", script],
    )
    assert (asked.min_nodes, asked.max_nodes, asked.role, asked.local_addr) == (2, 4, "trainer", "n1")
    assert (asked.max_restarts, asked.numa_binding, asked.virtual_local_rank) == (3, "node", True)
    assert (asked.event_log_handler, asked.entrypoint, asked.nproc) == ("console", script, 1)


def test_reading_the_command_line_does_not_import_torch(script: str) -> None:
    code = (
        "import sys; from outlast.cli.request import parse; import outlast.cli.config; "
        f"parse(['--nproc-per-node=cpu', {script!r}]); sys.exit('torch' in sys.modules)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode == 0
