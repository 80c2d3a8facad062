"""What agents and coordinators say to each other. Plain data: nothing here acts, and nothing is unpickled.

Every message after `Join` is a full statement, not a step: it may be lost, doubled, late or out of order,
and the next one of its kind repairs it. What could be late carries its generation.
"""
