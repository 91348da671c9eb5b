"""Jobs of an experiment: built from a config, run in processes or in lockstep, stored in one folder."""
