"""Snapshots outside of the workers: written to disk, copied to other nodes, served to who restores."""
