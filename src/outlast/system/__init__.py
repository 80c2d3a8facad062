"""Linux: clocks, processes and what /proc tells. Nothing of ours is imported here."""
