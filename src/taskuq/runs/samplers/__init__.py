"""Posterior samplers side by side: drawn on a GPU in a minute, judged from what was stored."""
