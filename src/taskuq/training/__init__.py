"""One way to train every network: configuration from TOML, exact restarts, weights without pickle.

Nothing here is imported by ``import taskuq``; pytorch-lightning is imported when training starts.
"""
