"""A scanner's stream in, decisions out: the MRD protocol, a service and a replay."""
