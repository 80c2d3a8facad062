"""`outlast rehearse`: the user's own script, run on this machine with faults, and what that says about it.

What happened is read from the probe's records (`outlast.worker.probe`); what it means is pure. Only `runner` starts
processes.
"""
