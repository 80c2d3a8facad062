"""Which coordinator may act, and how one takes over from another."""
