"""Which lines to measure: orders that are learned, rules that choose, and their comparison."""
