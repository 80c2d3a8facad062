"""Tasks of a job with roles: who is started again when one of them ends, and when all are done.

Nothing here acts: ends of tasks go in, decisions come out.
"""
