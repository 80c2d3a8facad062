"""When a rank is late, who blocks the others, and how timeouts are calibrated."""
