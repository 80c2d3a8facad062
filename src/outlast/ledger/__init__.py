"""The ledger: every second of a job, and every node-second, stands in exactly one state, with cause and place.

A pure function of the job's timed events: no clock, no file, no socket. So it replays, and outlives any coordinator.
"""
