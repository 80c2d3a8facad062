"""Workers that start fast: forked from a process that has imported what they import."""
