"""The way to the coordinator: where it is, the connection to it, and the one that this node may host."""
