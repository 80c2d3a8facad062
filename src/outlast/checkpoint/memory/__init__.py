"""Snapshots in shared memory, of this node and of others."""
