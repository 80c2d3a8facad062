"""Run by the interpreter of a worker or a zygote before anything else, because the agent put it on PYTHONPATH.

So a worker is what its command line says, `python -u script.py args…`, and no frame, module or argument of ours is
beneath its script. A zygote is that, too, held up here: each of its forks goes on from here into the script.

Nothing is imported that Python itself has not imported by now: a module of that name may lie beside the script.
"""

import os
import sys


def begin() -> None:
    """Hide the way in which we came, then do what this process is for."""
    here = os.path.dirname(__file__)  # noqa: PTH120  (pathlib may be the user's)
    sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)
    before = os.environ["PYTHONPATH"][len(here) + len(os.pathsep) :]
    if before:
        os.environ["PYTHONPATH"] = before
    else:
        del os.environ["PYTHONPATH"]
    purpose, descriptor = os.environ.pop("OUTLAST_STARTUP").split()
    if purpose == "zygote":
        _serve(int(descriptor), usual=frozenset(sys.modules))
    else:
        from outlast.worker import lessons

        lessons.report_later(int(descriptor))


def _serve(descriptor: int, usual: frozenset[str]) -> None:
    born = False
    try:
        from outlast.worker import zygote

        zygote.main(descriptor, usual)
        born = True
    finally:
        if not born:
            os._exit(1)  # whatever happened: only a worker goes on from here, to the script


begin()
# The sitecustomize that there would have been without this one; that there is none is what `site` expects to hear.
del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
