"""Every decision, and nothing but decisions.

Events go in, commands and reasons come out. No clock, socket, thread, file, random or torch here:
time is an argument, so the same code runs in production, in the simulator and in replay.
"""
