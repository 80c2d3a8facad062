"""Settings: one place, five ways to set them, and nothing unknown taken in silence."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.cli import config as command
from outlast.protocol.rules import Rules
from outlast.settings.loading import OWN_VARIABLES, load
from outlast.settings.settings import SETTINGS, JobSettings, Settings, reference
from outlast.settings.values import ports, section_timeouts, spelled

TOKEN = "a-token-of-enough-characters"


@pytest.fixture
def yaml_file(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "ft.yaml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def bare_environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.env, raising=False)
    monkeypatch.delenv("OUTLAST_FT_CFG_PATH", raising=False)
    return monkeypatch


def test_the_defaults_are_decisions() -> None:
    assert {name: setting.default for name, setting in SETTINGS.items()} == {
        "use_infra_group_rank": True,
        "node_name": "",
        "node_unit": 1,
        "last_call": 3.0,
        "pend_timeout": 600.0,
        "submitted": 0.0,
        "connect_timeout": 60.0,
        "node_timeout": 3.0,
        "empty_timeout": 10.0,
        "journal": "",
        "events": "",
        "webhook": "",
        "dashboard": False,
        "dashboard_port": 8380,
        "progress": True,
        "tie_break": "off",
        "restart_grace": 0.05,
        "planned_change_timeout": 20.0,
        "snapshot_linger": 60.0,
        "shm_reserve": 0,
        "replicas": 1,
        "warm_start": True,
        "warm_preload": "",
        "warm_cuda": False,
        "warm_join": 0.0,
        "restart_policy": "any-failed",
        "supervise": False,
        "hang_detection": "on",
        "rank_heartbeat_timeout": 0.0,
        "initial_rank_heartbeat_timeout": 0.0,
        "rank_section_timeouts": "",
        "rank_out_of_section_timeout": 0.0,
        "safety_factor": 5.0,
        "rank_termination_signal": "SIGKILL",
        "in_place_timeout": 3.0,
        "step_hook": True,
        "signatures": "",
        "failover": True,
        "failover_rules": "",
        "dynamic_failover_extension": "",
        "extension_timeout": 5.0,
        "crash_loop": 10,
        "exclude_for": 1800.0,
        "eviction_limit": 3,
        "straggler": "warn",
        "straggler_factor": 1.2,
        "allow_chaos": False,
        "network_check": False,
        "exclude_straggler": False,
        "slow_node_factor": 2.0,
        "node_check_timeout": 60.0,
        "comm_perf_test": False,
        "accelerator": "auto",
        "check_path": "",
        "verdict": "",
        "worker_memory": "",
        "max_worker_memory": "",
        "store_ports": "",
        "auth": True,
        "token": "",
        "token_file": "",
        "tls": False,
        "tls_cert": "",
        "tls_key": "",
        "tls_ca": "",
        "log_level": "info",
    }


def test_with_nothing_given_all_is_default() -> None:
    loaded = load({}, {"PATH": "/bin"}, None)
    assert loaded.settings == Settings()
    assert loaded.origins == dict.fromkeys(SETTINGS, "default")


def test_flag_beats_rdzv_conf_beats_environment_beats_file_beats_default(yaml_file) -> None:
    path = yaml_file("last_call: 1")
    environ = {"OUTLAST_LAST_CALL": "2"}
    conf = {"last_call": "3"}
    flags = {"--ft-last-call": "4"}
    expected = [
        (({}, {}, None), 3.0, "default"),
        (({}, {}, path), 1.0, path),
        (({}, environ, path), 2.0, "OUTLAST_LAST_CALL"),
        (({}, environ, path, conf), 3.0, "--rdzv-conf"),
        ((flags, environ, path, conf), 4.0, "--ft-last-call"),
    ]
    for given_, value, origin in expected:
        loaded = load(*given_)
        assert (loaded.settings.last_call, loaded.origins["last_call"]) == (value, origin)


def test_each_setting_has_its_own_source(yaml_file) -> None:
    path = yaml_file("node_name: red\nnode_unit: 2")
    loaded = load({"--node-timeout": "5", "--no-auth": "false"}, {"OUTLAST_NODE_UNIT": "4"}, path)
    assert loaded.settings == Settings(node_name="red", node_unit=4, node_timeout=5.0, auth=False)
    assert {name: origin for name, origin in loaded.origins.items() if origin != "default"} == {
        "node_name": path,
        "node_unit": "OUTLAST_NODE_UNIT",
        "node_timeout": "--node-timeout",
        "auth": "--no-auth",
    }


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "token"])
def test_every_setting_reads_its_default_back_from_flag_variable_and_file(name: str, yaml_file) -> None:
    setting = SETTINGS[name]
    text = spelled(setting.default)
    for flag in setting.flags:
        assert load({flag: text}, {}, None).settings == Settings()
    assert load({}, {setting.env: text}, None).settings == Settings()
    assert load({}, {}, yaml_file(f"{name}: {json.dumps(setting.default)}")).settings == Settings()


@pytest.mark.parametrize("word", ["true", "True", "TRUE", "1", "yes", "on", "On"])
def test_words_that_mean_true(word: str) -> None:
    assert load({"--ft-tls": word}, {}, None).settings.tls is True


@pytest.mark.parametrize("word", ["false", "False", "0", "no", "off", "OFF"])
def test_words_that_mean_false(word: str) -> None:
    assert load({}, {"OUTLAST_AUTH": word}, None).settings.auth is False


@given(st.floats(min_value=0, max_value=1e9))
def test_any_number_of_seconds_survives_being_spelled(seconds: float) -> None:
    assert load({}, {"OUTLAST_LAST_CALL": spelled(seconds)}, None).settings.last_call == seconds


@given(st.sampled_from([flag for setting in SETTINGS.values() for flag in setting.flags]), st.text())
def test_any_text_is_either_read_or_refused_in_one_line(flag: str, text: str) -> None:
    line = flag
    try:
        load({"--tls": "true", flag: text}, {}, None)
    except ValueError as error:
        line = str(error)
    assert line.startswith((flag, "tls_"))
    assert len(line.splitlines()) == 1


def test_a_file_may_be_flat_or_have_a_section(yaml_file) -> None:
    assert load({}, {}, yaml_file("node_timeout: 9")).settings.node_timeout == 9.0
    sectioned = "other_tool:\n  x: 1\nfault_tolerance:\n  node_timeout: 9\n"
    assert load({}, {}, yaml_file(sectioned)).settings.node_timeout == 9.0


def test_the_section_may_stand_deeper_in_the_file(yaml_file) -> None:
    nested = "trainer:\n  max_steps: 5\n  plugins:\n    fault_tolerance:\n      node_timeout: 9\n"
    assert load({}, {}, yaml_file(nested)).settings.node_timeout == 9.0


def test_null_is_off_where_there_is_an_off(yaml_file) -> None:
    text = (
        "rank_heartbeat_timeout: null\nhang_detection: null\nstraggler: ~\ncrash_loop:\nevents: null\n"
        "rank_section_timeouts: {step: 30, save: null}\n"
    )
    settings = load({}, {}, yaml_file(text)).settings
    assert (settings.rank_heartbeat_timeout, settings.hang_detection, settings.straggler) == (0.0, "off", "off")
    assert (settings.crash_loop, settings.events, settings.rank_section_timeouts) == (0, "", "step:30")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "fault_tolerance:\n", "{}"])
def test_a_file_without_settings_sets_nothing(yaml_file, text: str) -> None:
    assert load({}, {}, yaml_file(text)).settings == Settings()


def test_a_variable_names_the_file_unless_the_flag_does(yaml_file, tmp_path: Path) -> None:
    environ = {"OUTLAST_FT_CFG_PATH": yaml_file("node_unit: 2")}
    other = tmp_path / "other.yaml"
    other.write_text("node_unit: 3")
    assert load({}, environ, None).settings.node_unit == 2
    assert load({}, environ, str(other)).settings.node_unit == 3


def test_the_variables_that_workers_get_are_not_refused() -> None:
    environ = dict.fromkeys(OWN_VARIABLES - {"OUTLAST_FT_CFG_PATH"}, "7")
    assert load({}, environ, None).settings == Settings()


def test_an_empty_variable_is_as_good_as_unset() -> None:
    loaded = load({}, {"OUTLAST_NODE_TIMEOUT": ""}, None)
    assert loaded.origins["node_timeout"] == "default"


def test_torchruns_rendezvous_keys_are_understood_or_ignored() -> None:
    conf = {
        "last_call_timeout": "7",
        "join_timeout": "8",
        "read_timeout": "9",
        "keep_alive_interval": "1",
        "store_type": "file",
    }
    settings = load({}, {}, None, conf).settings
    assert settings == Settings(last_call=7, pend_timeout=8, connect_timeout=9)


@pytest.mark.parametrize(
    ("flags", "environ", "text", "conf", "words"),
    [
        ({"--ft-node-timout": "1"}, {}, "", {}, ["--ft-node-timout", "did you mean --ft-node-timeout?"]),
        ({"--ft-token": TOKEN}, {}, "", {}, ["--ft-token"]),
        ({"--ft-node-timeout": "soon"}, {}, "", {}, ["--ft-node-timeout", "number of at least 0.1", "'soon'"]),
        ({"--ft-node-timeout": "0"}, {}, "", {}, ["--ft-node-timeout", "at least 0.1"]),
        ({"--ft-last-call": "-1"}, {}, "", {}, ["--ft-last-call", "at least 0"]),
        ({"--ft-last-call": "nan"}, {}, "", {}, ["--ft-last-call", "'nan'"]),
        ({"--ft-last-call": "inf"}, {}, "", {}, ["--ft-last-call", "'inf'"]),
        ({"--node-unit": "0"}, {}, "", {}, ["--node-unit", "at least 1"]),
        ({"--node-unit": "1.5"}, {}, "", {}, ["--node-unit", "whole number"]),
        ({"--ft-auth": "maybe"}, {}, "", {}, ["--ft-auth", "true or false", "'maybe'"]),
        ({"--ft-log-level": "loud"}, {}, "", {}, ["--ft-log-level", "debug, info, warning, error"]),
        ({"--ft-store-ports": "a-b"}, {}, "", {}, ["--ft-store-ports", "29600-29700"]),
        ({"--ft-store-ports": "5-"}, {}, "", {}, ["--ft-store-ports", "29600-29700"]),
        ({"--ft-store-ports": "9-5"}, {}, "", {}, ["--ft-store-ports", "lower one first"]),
        ({"--ft-store-ports": "29600"}, {}, "", {}, ["--ft-store-ports", "two ports or more"]),
        ({"--ft-store-ports": "1-70000"}, {}, "", {}, ["--ft-store-ports", "65535"]),
        ({}, {"OUTLAST_NODE_TIMEOT": "1"}, "", {}, ["OUTLAST_NODE_TIMEOT", "did you mean OUTLAST_NODE_TIMEOUT?"]),
        ({}, {"OUTLAST_QQQQ": "1"}, "", {}, ["OUTLAST_QQQQ", "unset"]),
        ({}, {"OUTLAST_NODE_UNIT": "two"}, "", {}, ["OUTLAST_NODE_UNIT", "'two'"]),
        ({}, {}, "node-timeout: 3", {}, ["ft.yaml", "'node-timeout'", "did you mean node_timeout?"]),
        ({}, {}, "1: 3", {}, ["ft.yaml: unknown setting 1"]),
        ({}, {}, "node_timeout: [3]", {}, ["ft.yaml: node_timeout", "a number"]),
        ({}, {}, "node_timeout:", {}, ["ft.yaml: node_timeout", "not nothing"]),
        ({}, {}, "node_timeout: true", {}, ["ft.yaml: node_timeout", "not true"]),
        ({}, {}, "auth: 1", {}, ["ft.yaml: auth", "true or false"]),
        ({}, {}, "node_name: 7", {}, ["ft.yaml: node_name", "in quotes"]),
        ({}, {}, "- node_timeout", {}, ["ft.yaml", "name: value", "list"]),
        ({}, {}, "fault_tolerance: 5", {}, ["ft.yaml", "name: value"]),
        ({}, {}, "a: b: c", {}, ["ft.yaml", "not valid YAML in line 1"]),
        ({}, {}, "a: \x01", {}, ["ft.yaml", "not valid YAML"]),
        ({}, {}, "node_unit: 2\nnode_unit: 3", {}, ["ft.yaml", "line 2", "'node_unit' is there twice"]),
        ({}, {}, "fault_tolerance:\n  node_unit: 2\n  node_unit: 2", {}, ["line 3", "is there twice"]),
        ({}, {}, "fault_tolerence: {node_unit: 2}", {}, ["'fault_tolerence'", "did you mean fault_tolerance?"]),
        ({}, {}, "a: {fault_tolerance: {}}\nb: {fault_tolerance: {}}", {}, ["a.fault_tolerance and b.fault_tolerance"]),
        ({}, {}, "auth: null", {}, ["ft.yaml: auth", "true or false", "not nothing"]),
        ({}, {}, "node_unit: 2\nfault_tolerance: {}", {}, ["ft.yaml", "node_unit", "move it into it"]),
        ({}, {}, "", {"lastcall": "1"}, ["--rdzv-conf", "'lastcall'", "did you mean last_call?"]),
        ({}, {}, "", {"join_timeout": "x"}, ["--rdzv-conf: join_timeout", "'x'"]),
        ({}, {}, "", {"token": TOKEN}, ["--rdzv-conf", "process list", "OUTLAST_TOKEN"]),
        ({"--ft-tls-ca": "ca.pem"}, {}, "", {}, ["tls_ca", "--ft-tls-ca", "add --tls"]),
        ({"--tls": "true", "--ft-tls-cert": "c"}, {}, "", {}, ["tls_cert", "without tls_key"]),
        ({"--tls": "true", "--ft-tls-key": "k"}, {}, "", {}, ["tls_key", "without tls_cert"]),
    ],
)
def test_what_is_wrong_is_refused_in_one_line_that_says_where(flags, environ, text, conf, words, yaml_file) -> None:
    with pytest.raises(ValueError) as caught:
        load(flags, environ, yaml_file(text), conf)
    line = str(caught.value)
    assert "\n" not in line
    for word in words:
        assert word in line


def test_an_overridden_value_must_still_be_right() -> None:
    with pytest.raises(ValueError, match="OUTLAST_LAST_CALL"):
        load({"--ft-last-call": "1"}, {"OUTLAST_LAST_CALL": "soon"}, None)


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.yaml: cannot be read \(No such file"):
        load({}, {}, str(tmp_path / "absent.yaml"))
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ValueError, match=r"binary\.yaml: is not a YAML file"):
        load({}, {}, str(binary))


def test_a_token_is_never_shown(yaml_file) -> None:
    settings = load({}, {"OUTLAST_TOKEN": TOKEN}, None).settings
    assert settings.token == TOKEN
    assert TOKEN not in repr(settings) + str(settings) + str(settings.shown())
    for given_ in ({}, {"OUTLAST_TOKEN": "short-secret"}, None), ({}, {}, yaml_file("token: 12345678")):
        with pytest.raises(ValueError) as caught:
            load(*given_)
        assert "short-secret" not in str(caught.value)
        assert "12345678" not in str(caught.value)


def test_ports_are_a_range_with_both_ends() -> None:
    assert list(ports("29600-29602")) == [29600, 29601, 29602]
    assert list(ports("")) == []


def test_the_reference_lists_every_setting_with_its_help() -> None:
    rows = {row.name: row for row in reference()}
    assert list(rows) == list(SETTINGS)
    assert rows["node_timeout"] == (
        "node_timeout",
        "--ft-node-timeout, --node-timeout",
        "OUTLAST_NODE_TIMEOUT",
        "3.0",
        "Seconds of silence after which a node counts as lost.",
    )
    assert rows["auth"].flag == "--ft-auth, --no-auth"
    assert (rows["token"].flag, rows["token"].default) == ("", "not set")
    assert all(row.help.endswith(".") for row in rows.values())


def test_outlast_config_prints_values_and_where_they_came_from(bare_environ, capsys, yaml_file) -> None:
    bare_environ.setenv("OUTLAST_TOKEN", TOKEN)
    path = yaml_file("node_unit: 2")
    assert command.main(["--ft-cfg-path", path, "--ft-last_call=5", "--no-auth"]) == 0
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines()}
    assert rows["node_unit"] == ["2", path]
    assert rows["last_call"] == ["5.0", "--ft-last_call"]
    assert rows["auth"] == ["false", "--no-auth"]
    assert rows["token"] == ["set", "OUTLAST_TOKEN"]
    assert rows["tls"] == ["false", "default"]
    assert TOKEN not in printed
    assert len({len(line) - len(line.split(None, 1)[1]) for line in printed.splitlines()}) == 1, "columns are aligned"


@pytest.mark.usefixtures("bare_environ")
def test_outlast_config_prints_json(capsys) -> None:
    assert command.main(["--json", "--tls"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == list(SETTINGS)
    assert printed["tls"] == {"value": True, "origin": "--tls"}
    assert printed["token"] == {"value": "not set", "origin": "default"}


@pytest.mark.usefixtures("bare_environ")
def test_outlast_config_ends_with_2_and_one_line_for_bad_input(capsys) -> None:
    assert command.main(["--ft-last-call=soon"]) == 2
    assert capsys.readouterr().err == (
        "outlast config: error: --ft-last-call must be a number of at least 0 and at most 1000000000, not 'soon'\n"
    )
    with pytest.raises(SystemExit) as ended:
        command.main(["--ft-lastcall=3"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "outlast config: error: unknown flag --ft-lastcall; did you mean --ft-last-call?\n"
    )


def test_section_timeouts_are_a_text_or_in_yaml_a_table(yaml_file) -> None:
    as_text = load({"--ft-rank-section-timeouts": " step:30, a:b:0.5"}, {}, None).settings.rank_section_timeouts
    assert section_timeouts(as_text) == {"step": 30.0, "a:b": 0.5}
    as_table = load({}, {}, yaml_file("rank_section_timeouts: {step: 30, save: 600}")).settings.rank_section_timeouts
    assert section_timeouts(as_table) == {"step": 30.0, "save": 600.0}


@pytest.mark.parametrize(
    "text", ["step", "step:", ":30", "step:0", "step:-1", "step:soon", "step:nan", "step:1,step:2"]
)
def test_section_timeouts_that_are_none_are_refused_with_the_flag_that_gave_them(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--ft-rank-section-timeouts .*step|:30"):
        load({"--ft-rank-section-timeouts": text}, {}, None)


def test_in_yaml_off_is_the_word_and_not_a_switch(yaml_file) -> None:
    assert load({}, {}, yaml_file("hang_detection: off")).settings.hang_detection == "off"
    assert load({}, {}, yaml_file("hang_detection: on")).settings.hang_detection == "on"


@pytest.mark.parametrize("text", ["SIGWINCH", "SIGCONT", "9", "SIGSOMETHING", ""])
def test_a_signal_that_ends_nobody_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--ft-rank-termination-signal must be a signal that can end a process"):
        load({"--ft-rank-termination-signal": text}, {}, None)


def test_the_rules_of_a_job_are_its_settings() -> None:
    """One source: each setting of the job has one name, one type and one default, and all of them are passed on."""
    ours = {field.name: (field.type, field.default) for field in msgspec.structs.fields(Settings)}
    shared = [field for field in msgspec.structs.fields(Rules) if field.name in ours]
    assert [field.name for field in shared] == list(JobSettings.__struct_fields__)
    assert all((field.type, field.default) == ours[field.name] for field in shared)
    settings = Settings(tie_break="survivor", crash_loop=3, token="0123456789abcdef")
    asked = {"job": "j", "entrypoint": "train.py", "nodes": (1, 2), "max_restarts": 4}
    rules = Rules.of(settings, **asked, alone=False, check_only=False)
    assert {name: getattr(rules, name) for name in JobSettings.__struct_fields__} == {
        name: getattr(settings, name) for name in JobSettings.__struct_fields__
    }
    assert (rules.job, rules.min_nodes, rules.max_nodes, rules.max_restarts) == ("j", 1, 2, 4)


def test_a_job_that_nobody_else_can_join_does_not_wait_for_others_and_one_that_checks_does_check() -> None:
    asked = {"job": "j", "entrypoint": "train.py", "nodes": (1, 1), "max_restarts": 0}
    rules = Rules.of(Settings(), **asked, alone=True, check_only=True)
    assert (rules.alone, rules.empty_timeout, rules.check_only, rules.network_check) == (True, 0.0, True, True)
