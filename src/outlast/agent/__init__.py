"""The agent: one per node. It starts workers, watches them, and does what the coordinator orders.

It never imports torch and never imports the coordinator: the two know each other by messages alone.
"""
