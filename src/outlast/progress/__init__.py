"""The progress line of `outlast run` on a terminal: a process of its own that observes the job. The job never waits
for it, and is not told when it dies.

`row` and `text` are pure; `process` reads the job and writes to the terminal.
"""
