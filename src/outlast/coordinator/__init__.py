"""The coordinator's shell: one per job. It feeds events into the core and carries its commands out.

It decides nothing itself, never imports torch, and never imports the agent.
"""
