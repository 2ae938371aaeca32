"""Roles that do what a file in the run folder tells them, inside the real worker runtime."""
