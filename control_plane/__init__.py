"""The control plane: HTTP interface, registry, run state machine, supervisor, command line.

It holds all state in SQLite and is the only source of truth for what a run and its workers should
be doing. It never loads torch.
"""
