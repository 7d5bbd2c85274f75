"""Building blocks of a service process: polling loops, signals, health file, identity, quarantine."""
