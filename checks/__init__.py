"""Judges a node, and its likeness to its peers, before it joins a rollout."""
