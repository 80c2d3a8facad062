"""What a coordinator decides, as data: tagged structs, their sentences, and their digest.

Log lines, `--ft-events`, the verdict, the journal's digest and whoever watches are made from these. Nothing here acts.
"""
