"""A runtime without training code: recovery and task as programs, with what they were made of."""
