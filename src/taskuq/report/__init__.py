"""From stored results to figures and pages; computes no statistics."""
