"""The laboratory: a task, compositions, a driver; one result file; reports that read only that."""
