"""From evidence to cause: what was seen of ranks goes in, and who or what it was comes out, in one sentence.

Pure, as the core is: no clock, file, process or torch. Who collects the evidence is the agent; who compares, the
coordinator.
"""
