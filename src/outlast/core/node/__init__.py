"""The node: what an agent does with its workers; the other half of the job's rules.

Nothing here acts: inputs go in with the time, commands come out.
"""
