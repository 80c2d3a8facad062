"""What every test gets: a check that it leaves nothing behind, and hosts to run on."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

import machine
from hosts import KEPT, SHM, Cluster, Host, entries
from outlast.board.board import Board
from outlast.checkpoint.storage import bucket
from outlast.checkpoint.storage.storage import Url
from processes import TEST_ID, await_exit, describe, forget, kill_all, marked
from stores import BUCKET, KEYS, Proxy, as_google, s3_server

# How long an example takes says something about the machine, and nothing about what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
# For a long look, at other examples each time: `pytest tests/simulation/test_every_sample.py --timeout=0
# --hypothesis-profile=campaign`.
settings.register_profile("campaign", settings.get_profile("any machine"), max_examples=5000, print_blob=True)

# For those that were told to end and are on their way. Counted in looks: nobody gets on while the machine stands still.
# Less than `empty_timeout`: a coordinator that was merely forgotten ends after that, and would not be found.
LOOKS, LOOK = 80, 0.1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kills", type=int, default=24, help="how often tests of checkpoints kill (-9) at random instants"
    )
    parser.addoption(
        "--stories", type=int, default=2, help="how many random courses of a training are lived through by processes"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give each process that runs tests a machine of its own; the one that only deals them out runs none."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        machine.move_in()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for a `story` is run once for each: its number is the seed of all that is random in it."""
    if "story" in metafunc.fixturenames:
        metafunc.parametrize("story", range(metafunc.config.getoption("--stories")))


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """How often to kill."""
    count: int = request.config.getoption("--kills")
    return count


@pytest.fixture(autouse=True, scope="session")
def temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A temporary directory of this run alone: other jobs on the machine have their runtime files in /tmp too.

    Its path is short, because the paths of sockets must be.
    """
    tmp_path_factory.getbasetemp()  # stays in the machine's own, where pytest keeps it for a look afterwards
    path = Path(tempfile.mkdtemp(prefix="ol-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(path))
        patch.setattr(tempfile, "tempdir", None)
        yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def leaves_nothing_behind(temporary_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the test that leaves a process, shared memory or a runtime file behind, and remove them."""
    test_id = uuid.uuid4().hex
    monkeypatch.setenv(TEST_ID, test_id)
    before = set(psutil.Process().children(recursive=True))
    shm_before = set(entries(SHM))
    runtime = temporary_directory / f"outlast-{os.getuid()}"
    records_before = set(runtime.glob("*"))  # of a job that several tests share

    yield

    def processes() -> list[int]:
        ours = marked(lambda mark: mark.startswith(test_id))
        return sorted({*ours, *(child.pid for child in new_children(before))})

    for _ in range(LOOKS):
        if not (pids := processes()):
            break
        await_exit(pids, LOOK)
    pids = processes()
    left = [f"process {describe(pid)}" for pid in pids]
    if left:
        kill_all(processes)
    forget(test_id)
    shm = {SHM / name for name in set(entries(SHM)) - shm_before}
    runtime_files = {path for path in runtime.glob("*") if path.name not in KEPT}
    for path in [*shm, *runtime_files - records_before]:
        left.append(f"file {path}")
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if left:
        pytest.fail("the test left behind: " + ", ".join(left), pytrace=False)


def new_children(before: set[psutil.Process]) -> Iterator[psutil.Process]:
    """The running descendants of this process that were not there before, by pid and time of start."""
    for child in set(psutil.Process().children(recursive=True)) - before:
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                yield child


@pytest.fixture
def board() -> Iterator[Board]:
    """A board for two workers."""
    made = Board(2)
    yield made
    made.close()


@pytest.fixture
def hosts() -> Iterator[Callable[[int], list[Host]]]:
    """`hosts(3)` gives three hosts on a network of their own; several calls give several networks."""
    with ExitStack() as clusters:
        made: list[Host] = []

        def make(size: int) -> list[Host]:
            cluster = clusters.enter_context(Cluster(size))
            made.extend(cluster.hosts)
            return cluster.hosts

        yield make
        left = [f"{path} on {host.name}" for host in made if host.on for path in host.leftovers()]
    if left:
        pytest.fail("the test left behind: " + ", ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def s3_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of an S3 server that all tests share."""
    with s3_server(tmp_path_factory.mktemp("s3"), KEYS) as port:
        yield port


@pytest.fixture(scope="session")
def google_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of what stands in for Google's store."""
    with s3_server(tmp_path_factory.mktemp("google"), {}) as port:
        proxy = Proxy(port)
        proxy.fault(".*", as_google)
        yield proxy.url
        proxy.close()


@pytest.fixture
def gs(google_url: str, monkeypatch: pytest.MonkeyPatch) -> Url:
    """A prefix of this test alone, in a bucket of Google's."""
    account = {"gcs_base_url": google_url, "disable_oauth": True}
    nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps({**account, **nobody}))
    return Url(f"gs://{BUCKET}/{uuid.uuid4().hex}")


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest, s3: Url, gs: Url) -> Url:
    """A prefix of this test alone, in a bucket of either kind."""
    return {"s3": s3, "gs": gs}[request.param]


@pytest.fixture
def s3(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Url:
    """A prefix of this test alone, in a bucket to which the environment leads."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3_port}"}.items():
        monkeypatch.setenv(name, value)
    return Url(f"s3://{BUCKET}/{uuid.uuid4().hex}")


@pytest.fixture
def proxy(s3_port: int, s3: Url, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Between the tests and the server, with short timeouts."""
    assert s3
    made = Proxy(s3_port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
    monkeypatch.setitem(bucket.RETRIES, "max_retries", 2)
    yield made
    made.close()
