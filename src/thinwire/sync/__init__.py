"""When workers talk, and what they say: rounds, servers, federations."""
