"""What gives a job its nodes: by hand (a person, or this machine alone), Slurm and Ray.

`plan(spec)` is pure and says, word for word, what will be submitted. The coordinator tells a provider which nodes it
wants and which it gives back; without a provider, training goes on with the nodes that are there.
"""
