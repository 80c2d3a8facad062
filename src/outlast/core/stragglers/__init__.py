"""How fast ranks are, and which are slower than the others while training goes on."""
