"""Parts and a task that are not thinwire's own."""
