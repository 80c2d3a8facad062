"""Logs of workers on disk: when each line was written, and how to read parts of them in bounded time and memory.

Agents answer from here while a job runs, commands read a log directory with it afterwards. Nothing here waits.
"""
