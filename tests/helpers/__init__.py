"""What several test files share: cases, jobs for worker processes, small data, other environments."""
