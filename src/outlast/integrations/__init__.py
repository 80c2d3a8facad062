"""Frameworks that have a training loop of their own: what Outlast needs to know of it, one module for each.

Loaded by the user's script alone, and only with the framework itself: nothing else of Outlast imports from here.
"""
