"""Parameter-server training with TensorFlow under `outlast run --role chief=1 --role worker=2 --role ps=1` (roles.md).

    import outlast.tf

    if outlast.tf.role() in ("worker", "ps"):
        outlast.tf.serve()

    strategy = tf.distribute.ParameterServerStrategy(outlast.tf.cluster_resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Model()
    shards = outlast.ElasticShards(1_000_000, shard_size=512)
    loop = outlast.tf.ShardLoop(coordinator, shards, tf.train.Checkpoint(model=model), "checkpoints", save_every=50)
    loop.run(train_step)

A worker that dies is TensorFlow's business: the chief runs its work elsewhere, and takes the next life of it in. A
parameter server that dies takes variables with it, so all tasks start again, and the chief restores.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

# Before TensorFlow reads it: without it, what waits for a server that is gone waits for ever.
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")

import tensorflow as tf

from outlast.data.shards import DataShard, ElasticShards
from outlast.worker.session import session

SERVERS_LOST = 75  # an exit code: try again later


def role() -> str:
    """The role of this task; `chief` where the script runs by itself."""
    return os.environ.get("OUTLAST_ROLE", "chief")


def cluster_resolver() -> Any:
    """Where all tasks of this generation are, for `tf.distribute.ParameterServerStrategy`."""
    if "TF_CONFIG" not in os.environ:
        raise RuntimeError("there is no cluster: start the script with `outlast run --role chief=1 --role worker=2 …`")
    return tf.distribute.cluster_resolver.TFConfigClusterResolver()


def serve() -> NoReturn:
    """Serve as a worker or a parameter server, until the agent ends this task."""
    resolver = cluster_resolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()
    raise SystemExit  # it never comes back


def shard_dataset(shards: ElasticShards) -> Any:
    """The shards as a `tf.data` source: each element is the indices of one shard's samples.

    It runs in this process, the chief: batch, map and prefetch it, and give what comes out to `coordinator.schedule`.
    A shard counts as done when the next one is asked for, so save after `coordinator.join()`, without prefetched
    elements in between; `ShardLoop` does that for you.
    """
    spec = tf.TensorSpec(shape=(None,), dtype=tf.int64)
    return tf.data.Dataset.from_generator(lambda: (list(shard) for shard in shards), output_signature=spec)


class ShardProgress(tf.train.experimental.PythonState):  # type: ignore[misc]
    """Which shards are done, as a part of a `tf.train.Checkpoint`."""

    def __init__(self, shards: ElasticShards) -> None:
        self._shards = shards
        self.done = 0

    def serialize(self) -> str:
        return json.dumps({"done": self.done, "shards": self._shards.state_dict()})

    def deserialize(self, text: str) -> None:
        state = json.loads(text)
        self.done = state["done"]
        self._shards.load_state_dict(state["shards"])


class ShardLoop:
    """The chief's loop: restores, gives shards to workers, saves, and ends this life when the servers are lost.

    `checkpoint`: a `tf.train.Checkpoint` of the model and its optimizer; the shards are added to it. Every `save_every`
    shards it waits until all of them are in the model, and saves. The next life goes on from there: what was trained
    since the last save is trained again, and no sample is left out or trained twice in what is restored.

    Within a life, training is asynchronous: the work of a worker that dies is run again, and may have been applied
    before. That can add an update, never lose one.

    `saved(done, results)` is called after each save, with what the steps returned.
    """

    def __init__(
        self,
        coordinator: Any,
        shards: ElasticShards,
        checkpoint: Any,
        directory: str,
        *,
        save_every: int,
        keep: int = 3,
        saved: Callable[[int, list[Any]], None] = lambda _done, _results: None,
    ) -> None:
        if save_every < 1:
            raise ValueError(f"save_every must be at least 1, not {save_every}")
        self._coordinator, self._shards, self._every, self._saved = coordinator, shards, save_every, saved
        self._progress = checkpoint.outlast_shards = ShardProgress(shards)
        self._manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=keep)
        with session.waiting("restore"):
            self.restored: str | None = self._manager.restore_or_initialize()
        if self.restored:
            session.go_on_after(self.done)

    @property
    def done(self) -> int:
        """How many shards are in the model that was saved or restored last."""
        return self._progress.done

    def run(self, step: Callable[[Any], Any]) -> None:
        """Run `step(indices)`, a `tf.function`, on a worker for each shard that is left."""
        try:
            waiting: list[Any] = []
            last: DataShard | None = None
            for shard in self._shards:
                last = shard
                waiting.append(self._coordinator.schedule(step, args=(tf.constant(shard[:], tf.int64),)))
                if len(waiting) == self._every:
                    self._save(shard, waiting)
                    waiting = []
            if waiting and last is not None:
                self._save(None, waiting)
        except (tf.errors.UnavailableError, tf.errors.AbortedError) as lost:
            _give_up(lost)

    def _save(self, under_way: DataShard | None, waiting: list[Any]) -> None:
        self._coordinator.join()
        results = self._coordinator.fetch(waiting)
        if under_way is not None:
            self._shards.done(under_way)
        self._progress.done += len(waiting)
        with session.waiting("save"):
            self._manager.save()
        session.step(self.done)
        self._saved(self.done, results)


def _give_up(lost: Exception) -> NoReturn:
    """Its variables are gone. TensorFlow cannot connect again in this process, and waits for threads that never end."""
    reason = str(lost).strip().splitlines()[0][:300]
    sys.stdout.flush()
    print(f"a server is lost: {reason}; the next life restores the last checkpoint", file=sys.stderr, flush=True)
    os._exit(SERVERS_LOST)
