"""Tasks: a model and its data, small enough to run on a laptop."""
