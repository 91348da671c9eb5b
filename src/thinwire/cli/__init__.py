"""One file per command: parse, call one function, print. Nothing here imports torch before it is needed."""
