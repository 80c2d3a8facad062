"""Shards of data on demand: the coordinator deals them, agents remember who holds what."""
