"""What is done about failures: strategy, restart budget, nodes that are excluded for a while."""
