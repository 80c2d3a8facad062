"""Checkpoints on disk and in object stores: format, commit, verification."""
