"""The batcher: completions to gated samples, sealed shards and micro-batches in plan order."""
