"""ElasticJob on Kubernetes: the resource, what is done about it, and the operator that does it.

`reconcile` decides and never acts: it gets what was observed and the time, and returns a status and actions. Only the
operator's shell (`client`, `operator`) talks to a cluster; nothing else here has a clock, a socket or a random number.
"""
