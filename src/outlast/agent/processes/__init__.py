"""Worker processes: their environment, ports and place, their start and their certain end."""
