"""What `make demo` shows: a real training on two local nodes that is hurt twice, and finishes.

A worker is killed with `kill -9`; then a whole node is, with everything on it, and comes back.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
STEPS = 500
DEADLINE = 300.0  # seconds; a demo that takes longer has failed


class Shown:
    """Every line of every node, as it comes, and a way to wait for one of them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()

    def add(self, node: str, line: str) -> None:
        with self._news:
            self.lines.append(line)
            print(f"{node} │ {line}", flush=True)
            self._news.notify_all()

    def wait_for(self, test: Callable[[str], bool], since: int = 0) -> int:
        """The index behind the first line that passes the test."""
        with self._news:
            end = time.monotonic() + DEADLINE
            seen = since
            while True:
                while seen < len(self.lines):
                    seen += 1
                    if test(self.lines[seen - 1]):
                        return seen
                if any(line.startswith("outlast run: error:") for line in self.lines[since:]):
                    sys.exit("demo: the job failed")
                if not self._news.wait(end - time.monotonic()):
                    sys.exit("demo: the training got stuck")


def start_node(name: str, shown: Shown, workdir: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "outlast", "run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"]
    command += ["--rdzv-endpoint=127.0.0.1:29571", f"--ft-node-name={name}"]
    command += [str(HERE / "train.py"), f"--steps={STEPS}", "--save-every=20"]
    node = subprocess.Popen(command, cwd=workdir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def read() -> None:
        assert node.stdout is not None
        for line in node.stdout:
            shown.add(name, line.rstrip())

    threading.Thread(target=read, daemon=True).start()
    return node


def workers_of(node: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def after_step(wanted: int) -> Callable[[str], bool]:
    def test(line: str) -> bool:
        match = re.match(r"step (\d+):", line)
        return bool(match) and int(match[1]) >= wanted

    return test


def main() -> int:
    shown = Shown()
    with tempfile.TemporaryDirectory(prefix="outlast-demo-") as workdir:
        first = start_node("node-1", shown, workdir)
        shown.wait_for(lambda line: "hosting the coordinator" in line)
        second = start_node("node-2", shown, workdir)
        at = shown.wait_for(after_step(60))

        victim = workers_of(second)[0]
        print(f"demo   │ kill -9 of a worker on node-2 (pid {victim})", flush=True)
        os.kill(victim, signal.SIGKILL)
        at = shown.wait_for(lambda line: line.startswith("training from step"), at)
        at = shown.wait_for(after_step(160), at)

        print(f"demo   │ kill -9 of node-2: its agent (pid {second.pid}) and everything on it", flush=True)
        second.kill()
        second.wait()
        at = shown.wait_for(lambda line: line.startswith("training from step") and "on 1 ranks" in line, at)
        at = shown.wait_for(after_step(260), at)

        print("demo   │ node-2 comes back", flush=True)
        second = start_node("node-2", shown, workdir)
        shown.wait_for(lambda line: line.startswith("training from step") and "on 2 ranks" in line, at)
        codes = first.wait(DEADLINE), second.wait(DEADLINE)
    return report(shown.lines, codes)


def report(lines: list[str], codes: tuple[int, int]) -> int:
    """The story, from the coordinator's own decisions and the training's own words."""
    print("\nWhat happened:")
    for line in lines:
        decision = re.match(r"\S+ outlast coordinator: (.*)", line)
        if decision or line.startswith("training from"):
            print(f"  {decision[1] if decision else '  → ' + line}")
    steps = [line for line in lines if line.startswith("step ")]
    print(
        f"\nIt began with  {steps[0]}\nand ended with {steps[-1]}\nexit codes of the two nodes: {codes[0]}, {codes[1]}"
    )
    return 0 if codes == (0, 0) and f"step {STEPS}:" in steps[-1] else 1


if __name__ == "__main__":
    sys.exit(main())
