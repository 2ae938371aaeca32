"""Role evaluator: acceptance length by real speculative decoding on held-out prompts."""
