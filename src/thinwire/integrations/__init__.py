"""Where thinwire meets training frameworks. Nothing here knows any algorithm."""
