"""What a job is, wherever it runs: the job file as plain data, and the command lines that follow from it.

Nothing here talks to a platform: that is for `providers`.
"""
