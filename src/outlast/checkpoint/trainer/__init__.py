"""The training process's side: what is saved, when, and how it is restored."""
