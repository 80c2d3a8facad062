"""Every setting: declared once, read from files, variables and flags."""
