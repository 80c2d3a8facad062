"""What is run on the nodes: a workload says what its tasks need, and what their ends mean.

The agent starts, watches and ends processes for any workload, and knows none by name but the first, torch's.
"""
