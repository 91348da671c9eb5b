"""The command line, one file per command. Torch is imported only by the functions that need it."""
