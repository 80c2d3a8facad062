"""The job: which generation runs, on which nodes, and when a new one is formed.

Nothing here acts: inputs go in with the time, commands come out.
"""
