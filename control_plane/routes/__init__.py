"""The calls of the HTTP interface, a module for each group."""
