"""A deep-and-cross model on made-up clicks, trained with parameter servers.

    outlast run --max-restarts 10 --role chief=1 --role worker=2 --role ps=1 --role evaluator=1 \
        examples/parameter_server.py --checkpoints /tmp/clicks

Kill any of its processes: training goes on. Needs `pip install tensorflow-cpu` (2.16 or newer).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import outlast
import outlast.tf

import tensorflow as tf  # isort: skip  (after outlast.tf, which says how it shall wait for servers)

FIELDS, VALUES, WIDTH = 6, 50, 8


class DeepAndCross(tf.Module):  # type: ignore[misc]
    """Embeddings of categories, a cross network and a deep one beside each other."""

    def __init__(self) -> None:
        super().__init__()
        size = FIELDS * WIDTH
        self.embedding = self._made((FIELDS * VALUES, WIDTH), 0.1)
        self.cross = [(self._made((size, size), 0.05), self._made((size,), 0.0)) for _ in range(2)]
        self.deep = [(self._made((a, b), (2 / a) ** 0.5), self._made((b,), 0.0)) for a, b in ((size, 32), (32, 16))]
        self.last = self._made((size + 16, 1), 0.1)
        self.bias = self._made((1,), 0.0)

    @staticmethod
    def _made(shape: tuple[int, ...], scale: float) -> Any:
        return tf.Variable(np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32) * scale)

    def __call__(self, categories: Any) -> Any:
        rows = categories + tf.range(FIELDS, dtype=tf.int64) * VALUES
        start = tf.reshape(tf.gather(self.embedding, rows), (-1, FIELDS * WIDTH))
        crossed = deep = start
        for weight, bias in self.cross:
            crossed = start * (crossed @ weight + bias) + crossed
        for weight, bias in self.deep:
            deep = tf.nn.relu(deep @ weight + bias)
        return tf.squeeze(tf.concat([crossed, deep], 1) @ self.last + self.bias, 1)


def clicks(indices: Any) -> tuple[Any, Any]:
    """The samples with these numbers: categories, and whether somebody clicked. Some pairs of categories attract."""
    fields = tf.range(FIELDS, dtype=tf.int64)
    mixed = (indices[:, None] + 1) * (fields + 7) * 2_654_435_761
    categories = tf.bitwise.right_shift(tf.abs(mixed), 7) % VALUES
    taste = tf.constant(np.random.default_rng(7).normal(size=(FIELDS, VALUES)).astype(np.float32))
    likes = tf.gather(tf.reshape(taste, [-1]), categories + fields * VALUES)
    score = tf.reduce_sum(likes[:, :3], 1) + 2.0 * likes[:, 3] * likes[:, 4]
    return categories, tf.cast(score > 0, tf.float32)


def loss_of(model: DeepAndCross, indices: Any) -> Any:
    categories, clicked = clicks(indices)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=clicked, logits=model(categories)))


def train(args: argparse.Namespace) -> None:
    """The chief: it gives shards of samples to the workers, and saves."""
    strategy = tf.distribute.ParameterServerStrategy(outlast.tf.cluster_resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = DeepAndCross()
        updates = tf.Variable(0, dtype=tf.int64)

    @tf.function  # type: ignore[untyped-decorator]
    def step(indices: Any) -> Any:
        def on_worker() -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(model, indices)
            for variable, gradient in zip(
                model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
            ):
                variable.assign_sub(args.learning_rate * tf.convert_to_tensor(gradient))
            updates.assign_add(1)
            return loss

        return strategy.run(on_worker)

    def saved(done: int, losses: list[Any]) -> None:
        print(f"saved {done} shards, {updates.numpy()} updates, loss {np.mean(losses):.4f}", flush=True)
        time.sleep(args.pause)

    loop = outlast.tf.ShardLoop(
        coordinator,
        outlast.ElasticShards(args.samples, shard_size=args.batch, epochs=args.epochs),
        tf.train.Checkpoint(model=model, updates=updates),
        args.checkpoints,
        save_every=args.save_every,
        saved=saved,
    )
    print(f"restored {loop.done} shards, {updates.numpy()} updates", flush=True)
    loop.run(step)
    print(f"done after {loop.done} shards", flush=True)


def evaluate(args: argparse.Namespace) -> None:
    """Beside the training: the loss of each new checkpoint on samples that nobody trains on."""
    model, seen = DeepAndCross(), None
    checkpoint = tf.train.Checkpoint(model=model)
    held_out = tf.range(args.samples, args.samples + 4096, dtype=tf.int64)
    while True:
        newest = tf.train.latest_checkpoint(args.checkpoints)
        if newest and newest != seen:
            try:
                checkpoint.restore(newest).expect_partial()
            except tf.errors.NotFoundError:
                continue  # the chief has just replaced it by newer ones
            seen = newest
            print(f"evaluated {newest}: loss {loss_of(model, held_out).numpy():.4f}", flush=True)
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", required=True, help="directory of the checkpoints")
    parser.add_argument("--samples", type=int, default=64_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--save-every", type=int, default=50, help="shards from one checkpoint to the next")
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to rest after each checkpoint")
    args = parser.parse_args()
    if outlast.tf.role() in ("worker", "ps"):
        outlast.tf.serve()
    if outlast.tf.role() == "evaluator":
        evaluate(args)
    train(args)


if __name__ == "__main__":
    main()
