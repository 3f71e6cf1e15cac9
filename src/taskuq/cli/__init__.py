"""What each command of the command line does: parse nothing, call one function, print one path."""
