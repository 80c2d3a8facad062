"""How the workers do: late ranks, their stacks, their pace; and checks of the node itself."""
