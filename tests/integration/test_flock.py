"""Checkpoints on file systems without full flock, under the launcher: a preloaded library stands for each.

Lustre mounted without `-o flock` answers ENOSYS. NFS makes a byte-range lock of it: an exclusive one needs a descriptor
that is open for writing, a shared one a descriptor that is open for reading; else EBADF.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jobs import job

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static int concerned(int fd) {
  const char *below = getenv("FLOCK_BELOW");
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0 || below == NULL) return 0;
  path[length] = 0;
  return strncmp(path, below, strlen(below)) == 0;
}

int flock(int fd, int kind) {
  static int (*real)(int, int);
  if (!real) real = dlsym(RTLD_NEXT, "flock");
  if (!concerned(fd) || (kind & LOCK_UN)) return real(fd, kind);
  int writable = (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
  if (!strcmp(getenv("FLOCK_AS"), "lustre")) { errno = ENOSYS; return -1; }
  if ((kind & LOCK_EX) && !writable) { errno = EBADF; return -1; }
  return real(fd, kind);
}
"""
SAVES = """
import sys
import torch
from outlast import Checkpointer
saver = Checkpointer(sys.argv[1], keep_last=2)
state = {"w": torch.zeros(3)}
start = saver.restore(state)
print("restored", start, state["w"].tolist())
for step in range(start + 1, start + 5):
    saver.save(step, {"w": torch.full((3,), float(step))}, durable=True)
    saver.wait()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("library")
    (place / "flock.c").write_text(LIBRARY)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", place / "flock.so", place / "flock.c", "-ldl"], check=True)
    return place / "flock.so"


@pytest.mark.parametrize("kind", [pytest.param("lustre", marks=pytest.mark.thorough), "nfs"])
def test_checkpoints_are_written_pruned_and_restored_whatever_flock_says(
    kind: str, library: Path, tmp_path: Path
) -> None:
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    directory = tmp_path / "ck"
    env = {"LD_PRELOAD": str(library), "FLOCK_BELOW": str(directory), "FLOCK_AS": kind}
    for expected, kept in (("restored 0 [0.0, 0.0, 0.0]", [3, 4]), ("restored 4 [4.0, 4.0, 4.0]", [7, 8])):
        with job("--standalone", "--ft-snapshot-linger=0", script=script, args=[directory], env=env) as process:
            assert process.wait() == 0, process.output
        assert expected in process.output
        assert "remove" not in process.output, "nothing good is to be removed"
        assert sorted(int(path.name[5:13]) for path in directory.glob("step-*")) == kept, process.output
