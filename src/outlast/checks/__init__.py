"""What is done on a node to see whether it is fit: phases, and one module per accelerator.

It runs in processes of its own, which the agent starts for a probe, and ends when a phase takes too long. They alone
load torch; `plan.py` is what agent and process say to each other. Nothing here decides anything about the job.
"""
