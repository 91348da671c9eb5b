"""What a run stores: times, requests, metrics, plans, and the run's folder."""
