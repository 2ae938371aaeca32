"""Role drafter_trainer: hidden states in, optimizer steps, metrics and checkpoints out.

worker       loops: links, drain, pause, finish
intake       orders the micro-batches, drops second copies
training     the drafter, its optimizer, and the steps (torch)
checkpoints  folders on disk: complete or not there
series       metrics.jsonl, one line a step
watchdog     when a loss counts as diverging
"""
