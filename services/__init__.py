"""Adapters that the processes of the mesh lean on, one outside thing each."""
