"""The hosts that other tests stand on: what they promise, seen from commands that run on them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts import ETC, NAMESPACES, SHM, Cluster, Host, entries, remove_stale
from processes import Process, alive, python

Hosts = Callable[[int], list[Host]]
LONG = 120.0  # seconds in which an answer has come, on a machine however busy

ECHO = """
import socket, socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)
        print("goodbye", flush=True)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
server = Server(("0.0.0.0", 7000), Echo)
print("listening", flush=True)
server.serve_forever()
"""

# One connection for its whole life: "heard 1", "heard 2", …; "silence" when an answer takes so many seconds.
TALK = """
import itertools, socket, sys, time
talk = socket.create_connection((sys.argv[1], 7000))
talk.settimeout(float(sys.argv[2]))
for n in itertools.count():
    talk.sendall(b"%d\\n" % n)
    while True:
        try:
            answer = talk.recv(100)
        except TimeoutError:
            print("silence")
            continue
        except OSError as error:
            sys.exit(f"broken: {error!r}")
        break
    if not answer:
        sys.exit("closed")
    print("heard", answer.decode().strip())
    time.sleep(0.02)
"""

CALL = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])).close()
    print("connected")
except OSError as error:
    print("failed:", type(error).__name__)
"""

HEAR = """
import socket
box = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
box.bind(("0.0.0.0", 7001))
print("listening")
while True:
    print("heard from", box.recvfrom(100)[1][0])
"""

TELL = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"hello", (sys.argv[1], 7001))
"""


def run(host: Host, script: str, *args: str) -> Process:
    return host.start([python(), "-c", script, *args])


def serve(host: Host, script: str = ECHO) -> Process:
    server = run(host, script)
    server.wait_for("listening")
    return server


def talk_to(address: str, host: Host, patience: float = 1.0) -> Process:
    return run(host, TALK, address, str(patience))


def reaches(host: Host, address: str) -> bool:
    """Whether a new connection comes about."""
    return call(host, address, patience=LONG) == "connected"


def call(host: Host, address: str, patience: float = 2.0) -> str:
    """How a new connection goes."""
    return run(host, CALL, address, str(patience)).wait_for("connected|failed.*")[0]


def traces() -> set[str]:
    """All that hosts of this process leave on the machine."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    mine = f"ol{os.getpid()}x"
    places = (NAMESPACES, ETC, SHM, Path(tempfile.gettempdir()))
    found = {str(place / name) for place in places for name in entries(place) if name.startswith(mine)}
    return found | {line.split(":")[1].strip() for line in links.splitlines()}


def test_hosts_reach_each_other_by_address_and_by_name(hosts: Hosts) -> None:
    first, second, third = hosts(3)
    serve(first)
    assert reaches(second, first.address)
    assert reaches(third, first.name)


def test_hosts_have_different_host_names_and_the_machine_keeps_its_own(hosts: Hosts) -> None:
    before = os.uname().nodename
    outputs = []
    for host in hosts(2):
        process = run(host, "import socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))")
        assert process.wait() == 0, process.output
        outputs.append(process.output)
        assert process.output == f"{host.name} {host.address}\n"
    assert len(set(outputs)) == 2
    assert os.uname().nodename == before


def test_hosts_cannot_reach_anything_but_each_other(hosts: Hosts) -> None:
    (host,) = hosts(1)
    routes = host.start(["ip", "-4", "route"])
    assert routes.wait() == 0
    assert [line.split()[0] for line in routes.lines] == [f"{host.address.rpartition('.')[0]}.0/24"]
    other_cluster = hosts(1)[0]
    serve(other_cluster)
    assert call(host, other_cluster.address).startswith("failed")


def test_hosts_share_no_memory(hosts: Hosts) -> None:
    first, second = hosts(2)
    assert first.start(["touch", "/dev/shm/board"]).wait() == 0
    assert first.start(["rm", "/dev/shm/board"]).wait() == 0  # the next command on the same host sees it
    assert first.start(["touch", "/dev/shm/board"]).wait() == 0
    assert second.start(["test", "-e", "/dev/shm/board"]).wait() == 1
    assert (first.shm / "board").exists()
    (first.shm / "board").unlink()


def test_signals_reach_the_command_itself(hosts: Hosts) -> None:
    (host,) = hosts(1)
    script = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); print('ready'); signal.pause()"
    process = run(host, script)
    process.wait_for("ready")
    assert process.pid in host.processes()
    process.signal(signal.SIGTERM)
    assert process.wait() == 7


def test_a_cut_host_is_silent_and_its_connections_go_on_when_it_heals(hosts: Hosts) -> None:
    server_host, cut, other = hosts(3)
    server = serve(server_host)
    talk, bystander = talk_to(server_host.address, cut), talk_to(server_host.address, other, LONG)
    talk.wait_for("heard 3")
    bystander.wait_for("heard")

    cut.cut()
    talk.wait_for("silence")
    assert call(cut, server_host.address) == "failed: TimeoutError"
    assert call(server_host, cut.address) == "failed: TimeoutError"
    at = bystander.lines[-1].removeprefix("heard ")
    bystander.wait_for(f"heard {int(at) + 3}$")

    cut.heal()
    talk.wait_for("heard")
    talk.wait_for("heard")
    assert talk.running
    assert "silence" not in bystander.output
    assert "goodbye" not in server.output


def test_a_cut_on_the_far_side_looks_the_same(hosts: Hosts) -> None:
    server_host, other = hosts(2)
    serve(server_host)
    talk = talk_to(server_host.address, other)
    talk.wait_for("heard 3")
    server_host.cut()
    talk.wait_for("silence")
    server_host.heal()
    talk.wait_for("heard")
    assert talk.running


def test_a_cut_between_two_hosts_leaves_the_third_connected(hosts: Hosts) -> None:
    first, second, third = hosts(3)
    serve(first)
    first.cut_from(second)
    assert call(second, first.address) == "failed: TimeoutError"
    assert reaches(third, first.address)
    second.heal()
    assert reaches(second, first.address)


def test_a_cut_in_one_direction_lets_the_other_through(hosts: Hosts) -> None:
    first, second = hosts(2)
    on_first, on_second = serve(first, HEAR), serve(second, HEAR)
    first.cut_to(second)
    assert run(second, TELL, first.address).wait() == 0
    on_first.wait_for(f"heard from {second.address}")
    assert run(first, TELL, second.address).wait() == 0
    first.heal()
    assert run(first, TELL, second.address).wait() == 0
    on_second.wait_for(f"heard from {first.address}")
    assert len(on_second.lines) == 2  # the first word was lost, not late


def test_a_killed_host_says_no_goodbye_and_leaves_nothing(hosts: Hosts) -> None:
    server_host, victim = hosts(2)
    server = serve(server_host)
    talk = talk_to(server_host.address, victim)
    talk.wait_for("heard 3")
    # An orphan in a session of its own, with no environment: nothing but the namespace ties it to the host.
    orphan = victim.start(["sh", "-c", "setsid env -i sleep 600 & touch /dev/shm/board; echo $! started"])
    orphan_pid = int(orphan.wait_for(r"(\d+) started")[1])
    assert talk.pid in victim.processes()

    victim.kill()
    assert talk.returncode == -signal.SIGKILL
    assert victim.processes() == []
    assert not alive(orphan_pid)
    assert not victim.shm.exists()
    assert call(server_host, victim.address) == "failed: TimeoutError"
    assert "goodbye" not in server.output


def test_a_killed_host_comes_back_with_the_next_start(hosts: Hosts) -> None:
    first, second = hosts(2)
    serve(second)
    second.kill()
    first.cut_to(second)
    serve(second)
    assert reaches(first, second.address)
    assert entries(second.shm) == []


def test_a_killed_host_can_be_turned_on_without_a_command(hosts: Hosts) -> None:
    first, second = hosts(2)
    serve(first)
    second.kill()
    second.kill()
    second.heal()
    assert second.processes() == []
    assert reaches(second, first.address)


def test_teardown_leaves_no_namespace_link_file_or_process() -> None:
    before = traces()
    with Cluster(3) as cluster:
        processes = [serve(host) for host in cluster.hosts]
        cluster.hosts[0].cut()
        cluster.hosts[1].kill()
        assert traces() > before
    assert traces() == before
    assert not any(process.running for process in processes)


def test_a_set_up_that_fails_half_way_is_taken_down(monkeypatch: pytest.MonkeyPatch) -> None:
    before = traces()
    cluster = Cluster(3)
    monkeypatch.setattr(cluster.hosts[1], "_mac", "not a hardware address")
    with pytest.raises(RuntimeError, match="not a hardware address"):
        cluster.__enter__()
    assert traces() == before


def test_what_a_killed_test_run_left_is_removed_by_the_next() -> None:
    script = (
        "import os, hosts, time; cluster = hosts.Cluster(2).__enter__();"
        "cluster.hosts[0].start(['sleep', '600']); print('made', cluster.name); time.sleep(600)"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    with Process([python(), "-c", script], env={"PYTHONPATH": path}) as run_before:
        name = run_before.wait_for(r"made (\w+)")[1]
        remove_stale()
        assert f"{name}h0" in entries(NAMESPACES)  # its maker is alive
        run_before.signal(signal.SIGKILL)
        run_before.wait()
        remove_stale()
    assert not [entry for place in (NAMESPACES, ETC, SHM) for entry in entries(place) if entry.startswith(name)]


def test_without_root_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RuntimeError, match="run them as root"):
        Cluster(1).__enter__()


def test_without_iproute2_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(RuntimeError, match="scripts/install-system-packages"):
        Cluster(1).__enter__()
