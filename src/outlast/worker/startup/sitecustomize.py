"""Run by the interpreter of a worker or a zygote before anything else, because the agent put it on PYTHONPATH.

So a worker is what its command line says, `python -u script.py args…`, and no frame, module or argument of ours is
beneath its script. A zygote is that, too, held up here: each of its forks goes on from here into the script.

Nothing is imported that Python itself has not imported by now: a module of that name may lie beside the script.
"""

import os
import sys


def begin() -> None:
    """Do what this process is for."""
    purpose, descriptor = os.environ.pop("OUTLAST_STARTUP").split()
    modules = frozenset(sys.modules)
    if purpose == "zygote":
        be_zygote(int(descriptor), modules)
        return
    cover_tracks()
    from outlast.worker import chaos, dump, last_words, lessons, probe, step_hook, store

    dump.install()
    last_words.install()
    step_hook.install()
    probe.install()
    chaos.install()
    if purpose == "worker":
        store.await_before_asking()
        lessons.report_later(int(descriptor))


def be_zygote(descriptor: int, modules: frozenset[str]) -> None:
    """Serve the agent. Only forked workers come back from here, and go on to the script."""
    born = False
    try:
        cover_tracks()
        from outlast.worker import zygote

        zygote.main(descriptor, modules)
        born = True
    except Exception:
        sys.excepthook(*sys.exc_info())  # on the stream of the worker that could not be born; a zygote has none
        raise
    finally:
        if not born:
            os._exit(1)  # whatever happened: the script is not for a zygote


def cover_tracks() -> None:
    """Take back what led Python here: the script, and what it starts, shall not come this way."""
    here = os.path.dirname(__file__)  # noqa: PTH120  (pathlib may be the user's)
    sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)
    before = os.environ["PYTHONPATH"][len(here) + len(os.pathsep) :]
    if before:
        os.environ["PYTHONPATH"] = before
    else:
        del os.environ["PYTHONPATH"]


begin()
# The sitecustomize that there would have been without this one; that there is none is what `site` expects to hear.
del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
