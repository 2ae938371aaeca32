"""Prompts and samples: reading, splitting, rendering, tokenizer facts, Arrow shards.

`tokenizer` needs transformers; everything else here loads without torch and transformers, so that
the control plane and the batcher can use it.
"""
