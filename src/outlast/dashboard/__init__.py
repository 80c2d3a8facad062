"""The dashboard page: a process of its own that observes a job and shows it in a browser. The job never waits for it.

`page_state` and what it is made of are pure; `app` and `server` are the shell, and alone need the `[dashboard]` extra.
Nothing here decides anything about a job.
"""
