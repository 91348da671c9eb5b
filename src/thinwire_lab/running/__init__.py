"""Jobs of an experiment: built from a config, run on processes or in lockstep, stored in one folder."""
