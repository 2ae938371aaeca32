"""Alembic migrations of the control plane's database, run at start."""
