"""Snapshots of the training state in memory, and checkpoints on disk: as fast as a copy, and never wrong.

`format`, `arena`, `persist`, `background` and `keeper` never import torch, for the agent's side uses them. Nothing here
imports agent, coordinator or core.
"""
