"""Models of the laboratory, small enough to read; each is a plain torch module."""
