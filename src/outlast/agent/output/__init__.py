"""What workers print and how that reaches people: log files, console, summaries."""
