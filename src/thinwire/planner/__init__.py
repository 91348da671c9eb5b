"""What a link can do, and what follows from it."""
