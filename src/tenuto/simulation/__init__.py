"""Simulation of schedules: what would run when. Changes nothing."""
