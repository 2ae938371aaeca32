"""Role target_forward: the frozen target over micro-batches, its hidden states onwards."""
