"""Whatever is wrong with what the user asked for: one clear line, an exit code, and nothing left running."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from jobs import SCRIPTS, WAITS, errors, free_port, job, node, workers
from processes import Process, outlast, python

EXITS = SCRIPTS / "exits.py"
TOKEN = {"OUTLAST_TOKEN": "a secret of sixteen characters or more"}
SHORT = "--ft-connect-timeout=1"


def refusal(process: Process, code: int = 1) -> str:
    """Await the end of a command that must fail with one clear line, and return the line."""
    assert process.wait() == code, process.output
    assert len(errors(process)) == 1, process.output
    others = [line for line in process.lines if line not in errors(process) and " outlast " not in line]
    assert not others, "\n".join(others)
    assert not process.tree()
    return errors(process)[0]


@contextmanager
def running(process: Process) -> Iterator[Process]:
    """A job with one worker that runs before, during and after, in one generation, and then succeeds."""
    with process:
        (worker,) = workers(process, 1, 0)
        yield process
        os.kill(worker.pid, signal.SIGUSR1)
        assert process.wait() == 0, process.output
        assert "generation 2" not in process.output


# -- the command line


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ([], 2, "no script"),
        (["no-such-script.py"], 1, "no-such-script.py"),
        (["--nnodes=3:2", EXITS], 1, "--nnodes=2:3"),
        (["--local-addr=no host", EXITS], 1, "--local-addr"),
        (["--rdzv-endpoint=a..b:29400", "--nnodes=2", EXITS], 1, "--rdzv-endpoint"),
        (["--ft-typo=1", EXITS], 2, "--ft-typo"),
        (["--ft-last-coll=1", EXITS], 2, "--ft-last-call"),
        (["--no-python", EXITS], 1, "chmod +x"),
        (["--log-dir", EXITS / "logs", EXITS], 1, "--log-dir"),
        (["--log-dir=/sys/logs", EXITS], 1, "--log-dir"),
        (["--tls", "--ft-tls-cert=none.pem", "--ft-tls-key=none.pem", EXITS], 1, "none.pem"),
        (["--tls", f"--ft-tls-cert={EXITS}", f"--ft-tls-key={EXITS}", EXITS], 1, "exits.py"),
        (["--tls", "--ft-tls-ca=none.pem", EXITS], 1, "none.pem"),
    ],
)
def test_a_command_that_cannot_be_followed_is_refused(argv: list[str | Path], code: int, words: str) -> None:
    assert words in refusal(outlast("run", *argv), code)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"PYTHON_EXEC": "/no/such/python"}, "PYTHON_EXEC"),
        ({"OUTLAST_NODE_TIMOUT": "3"}, "OUTLAST_NODE_TIMEOUT"),
        ({"OUTLAST_TOKEN": "short"}, "OUTLAST_TOKEN"),
    ],
)
def test_an_environment_that_cannot_be_followed_is_refused(env: dict[str, str], words: str) -> None:
    assert words in refusal(job(script=EXITS, args=["0"], env=env))


def test_a_program_that_cannot_be_executed_fails_the_job_with_its_name(tmp_path: Path) -> None:
    """The first line's interpreter is not there: only starting it tells."""
    program = tmp_path / "train.sh"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    process = job("--no-python", script=program)
    assert process.wait() == 1
    assert len(errors(process)) == 1
    assert str(program) in process.output
    assert "Traceback" not in process.output


# -- where nodes meet


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:PORT", "--rdzv-conf=is_host=0"], id="c10d"),
        pytest.param(["--node-rank=1", "--master-port=PORT"], id="static"),
    ],
)
def test_an_endpoint_that_nobody_listens_on_is_named(flags: list[str]) -> None:
    port = str(free_port())
    flags = [flag.replace("PORT", port) for flag in flags]
    line = refusal(job("--nnodes=2", SHORT, *flags, script=EXITS))
    assert f"no coordinator answers at 127.0.0.1:{port}" in line
    assert "--rdzv-endpoint" in line


def test_a_node_may_be_started_before_the_one_that_hosts() -> None:
    """Also where the host will make the token: that nobody has one yet is no reason to give up."""
    port = free_port()
    flags = ("--nnodes=2", f"--master-port={port}", "--rdzv-id=job")
    with job(*flags, "--node-rank=1", script=EXITS, args=["0", "0"]) as early:
        early.wait_for("waiting for the coordinator")
        late = job(*flags, "--node-rank=0", script=EXITS, args=["0", "0"])
        assert (early.wait(), late.wait()) == (0, 0), early.output + late.output


def test_a_host_name_that_is_not_known_is_named() -> None:
    meeting = ("--rdzv-backend=c10d", "--rdzv-endpoint=no-such-host.invalid:29400")
    line = refusal(job("--nnodes=2", SHORT, *meeting, script=EXITS, env=TOKEN))
    assert "no-such-host.invalid:29400" in line
    assert "--rdzv-endpoint" in line


@pytest.mark.parametrize("host", ["192.0.2.1", "0.0.0.0"])
def test_an_address_that_others_can_reach_needs_a_token(host: str) -> None:
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{free_port()}")
    line = refusal(job("--nnodes=1:2", *meeting, script=EXITS))
    assert "OUTLAST_TOKEN" in line
    assert "--no-auth" in line


def test_a_wrong_token_is_refused_and_the_job_goes_on() -> None:
    port = free_port()
    with running(node("a", port, "--nnodes=1:2", "--ft-last-call=0", env=TOKEN)) as a:
        for env in ({"OUTLAST_TOKEN": "not the secret of this job"}, {}):
            line = refusal(node("b", port, "--nnodes=1:2", SHORT, env=env))
            assert "OUTLAST_TOKEN" in line
        a.wait_for("went before it had joined: it may not know this job's token")


@pytest.mark.parametrize(
    ("flags", "script", "words"),
    [
        (["--nnodes=1:2", "--rdzv-id=another"], WAITS, "serves job 'job', not 'another'"),
        (["--nnodes=1:2"], EXITS, "another job needs another port"),
        (["--nnodes=1:3"], WAITS, "--nnodes=1:2"),
    ],
)
def test_a_second_job_on_the_same_endpoint_is_refused_and_the_first_goes_on(
    flags: list[str], script: Path, words: str
) -> None:
    port = free_port()
    with running(node("a", port, "--nnodes=1:2", "--ft-last-call=0")):
        assert words in refusal(node("b", port, *flags, script=script))


SILENT = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print("port", listener.getsockname()[1], flush=True)
kept = [listener.accept() for _ in range(1000)]
"""
HTTP = """
import http.server
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
print("port", server.server_address[1], flush=True)
server.serve_forever()
"""
CHATTY = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print("port", listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(b"220 mail.example.com ESMTP\\r\\n")
    connection.close()
"""
STORE = """
import signal, torch.distributed
store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print("port", store.port, flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    ("listener", "env"),
    [
        pytest.param(HTTP, {}, id="an HTTP server"),
        pytest.param(HTTP, TOKEN, id="an HTTP server, and a token is given"),
        pytest.param(SILENT, TOKEN, id="a silent listener"),
        pytest.param(CHATTY, TOKEN, id="a chatty one"),
        pytest.param(STORE, TOKEN, id="torch's TCPStore"),
    ],
)
def test_a_port_that_something_else_uses_is_named(listener: str, env: dict[str, str]) -> None:
    with Process([python(), "-c", listener], title="the listener") as other:
        port = int(other.wait_for(r"port (\d+)")[1])
        line = refusal(node("a", port, "--nnodes=1:2", SHORT, script=EXITS, env=env))
        assert str(port) in line
        assert "another port" in line
        if listener == SILENT:
            assert f"held by {Path(python()).resolve().name[:6]}" in line
            assert f"(pid {other.pid})" in line


def test_a_silent_listener_is_named_long_before_the_connect_timeout() -> None:
    with Process([python(), "-c", SILENT], title="the listener") as other:
        port = int(other.wait_for(r"port (\d+)")[1])
        line = refusal(node("a", port, "--nnodes=1:2", "--ft-connect-timeout=600", script=EXITS, env=TOKEN))
        assert f"port {port} is held by" in line


def test_a_static_job_whose_master_port_is_taken_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(job("--nnodes=2", "--node-rank=0", f"--master-port={port}", SHORT, script=EXITS))
        assert str(port) in line
        assert "another port" in line


def test_the_only_nodes_master_port_that_is_taken_is_named_with_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(job(f"--master-port={port}", script=EXITS))
        assert f"--master-port {port} is held by " in line
        assert f"(pid {os.getpid()})" in line


# -- logs


def test_a_range_without_a_port_for_the_next_store_fails_the_job_in_words() -> None:
    first = free_port()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other_agent:
        other_agent.bind(f"\0outlast-store-port-{first + 1}")
        with outlast("run", f"--ft-store-ports={first}-{first + 1}", EXITS) as process:
            assert process.wait() == 1, process.output
    assert f"no free port for the store in store_ports {first}-{first + 1}: widen the range" in process.output


def test_a_failure_in_a_directory_whose_name_is_no_text_is_told(tmp_path: Path) -> None:
    with outlast("run", f"--log-dir={tmp_path}/\udcff", "--redirects=3", EXITS, "3") as process:
        assert process.wait() == 1, process.output
    assert "exitcode  : 3" in process.output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a few pages."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_full_disk_for_logs_is_named_before_anything_starts(small_disk: Path) -> None:
    with suppress_full(), open(small_disk / "full", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    line = refusal(job(f"--log-dir={small_disk}/logs", "--tee=3", script=EXITS, args=["0"]))
    assert str(small_disk) in line
    assert "free some space, or choose another --log-dir" in line


@contextmanager
def suppress_full() -> Iterator[None]:
    with pytest.raises(OSError, match="No space left"):
        yield


def test_a_disk_that_fills_up_while_it_runs_does_not_stop_training(small_disk: Path, tmp_path: Path) -> None:
    script = tmp_path / "talks.py"
    script.write_text("for line in range(5000):\n    print(f'line {line} of many, and each of them is rather long')\n")
    process = job("--tee=3", f"--log-dir={small_disk}", script=script)
    assert process.wait() == 0, process.output[-2000:]
    assert "[default0]:line 4999 of many, and each of them is rather long" in process.lines
    assert sum("No space left on device" in line for line in process.lines) == 1


# -- TLS


class Authority:
    """An authority that signs certificates for 127.0.0.1."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        ca = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.ca = directory / f"{name}-ca.pem"
        self.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))

    def certificate(self) -> tuple[Path, Path]:
        """The files of a new certificate and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        signed = self._sign(name, key, address)
        files = self._directory / "cert.pem", self._directory / "key.pem"
        files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        no_password = serialization.NoEncryption()
        files[1].write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)
        )
        return files

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(extension, critical=True)
            .sign(self._key, hashes.SHA256())
        )


def test_tls_with_a_certificate_of_its_own_making_joins_nodes_and_refuses_those_without() -> None:
    port = free_port()
    with node("a", port, "--nnodes=2", "--tls", args=[]) as a:
        a.wait_for("hosting the coordinator")
        line = refusal(node("plain", port, "--nnodes=2", SHORT))
        assert "--tls" in line
        with node("b", port, "--nnodes=2", "--tls") as b:
            members = [process.wait_for(r"rank \d of 2 started in generation 1: pid (\d+)") for process in (a, b)]
            for member in members:
                os.kill(int(member[1]), signal.SIGUSR1)
            assert (a.wait(), b.wait()) == (0, 0)


def test_a_node_with_tls_is_refused_by_a_job_without() -> None:
    port = free_port()
    with running(node("a", port, "--nnodes=1:2", "--ft-last-call=0")):
        assert "--tls" in refusal(node("b", port, "--nnodes=1:2", "--tls", SHORT))


def test_a_certificate_of_ones_own_is_verified_with_its_authority(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    cert, key = ours.certificate()
    served = ("--tls", f"--ft-tls-cert={cert}", f"--ft-tls-key={key}", f"--ft-tls-ca={ours.ca}")
    port = free_port()
    with node("a", port, "--nnodes=2", *served) as a:
        a.wait_for("hosting the coordinator")
        line = refusal(node("stranger", port, "--nnodes=2", "--tls", f"--ft-tls-ca={theirs.ca}", SHORT))
        assert "--ft-tls-ca" in line
        with node("b", port, "--nnodes=2", "--tls", f"--ft-tls-ca={ours.ca}") as b:
            members = [process.wait_for(r"rank \d of 2 started in generation 1: pid (\d+)") for process in (a, b)]
            for member in members:
                os.kill(int(member[1]), signal.SIGUSR1)
            assert (a.wait(), b.wait()) == (0, 0)


def test_something_else_where_snapshots_would_lie_costs_no_more_than_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib\n"
        "place = pathlib.Path(os.environ['OUTLAST_ARENA'].rpartition(':')[0])\n"
        "place.touch()\n"
        "print('it lies at', place, flush=True)\n"
        "raise SystemExit(7)\n"
    )
    with outlast("run", "--nproc-per-node=1", script) as process:
        place = Path(process.wait_for(r"it lies at (\S+)")[1])
        try:
            assert process.wait() == 1
            assert "exit code 7" in process.output, process.output
        finally:
            for left in place.parent.glob(f"{place.name}*"):
                left.unlink()
