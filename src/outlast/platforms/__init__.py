"""What gives us nodes: what each platform says about the node that we run on."""
