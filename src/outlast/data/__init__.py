"""Every sample exactly once, whatever the world size: order, position, batches, and the loaders around them.

`order`, `position`, `batch` and `seeds` are arithmetic: no torch, no clock, no file. The samplers and loaders run
inside the training process, and import torch. Nothing here is imported by agent or coordinator.
"""
