"""The generator: prompts to completions in an append-only log, served to the batcher."""
