"""Which nodes are fit: rounds of checks, who is paired with whom, and what that says."""
