"""One module for each revision, oldest first."""
