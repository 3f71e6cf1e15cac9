"""Which lines to measure: learned orders and adaptive rules."""
