"""Commands of the command line: each calls one function and prints one path."""
