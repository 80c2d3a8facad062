"""Faults on purpose, from the side of whoever asks for them: what there is, and how the job answered.

Pure but for `conductor`. What a node does is in `agent/chaos`, what a worker does in `worker/chaos.py`.
"""
