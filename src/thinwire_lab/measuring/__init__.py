"""What a run leaves: times, requests, metrics, plans, and the folder that holds them."""
