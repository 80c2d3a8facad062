"""Faults on purpose, on this node: what `outlast chaos` asks for. Does nothing in a job without --allow-chaos.

Whatever lasts is a process of its own that takes everything back when its time is over, or when the agent ends.
"""
