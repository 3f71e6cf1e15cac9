"""From a measurement to recoveries."""
