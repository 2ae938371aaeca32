"""Verified copies of a run: exports on request, and continuous archiving while it goes on."""
