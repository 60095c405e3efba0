"""The command line, `qd`: a family of commands a file, loaded only when one of it is called."""
