"""How observers find a job through its agents: on this machine by a local socket, from others by a relay."""
