"""What every process of the mesh must agree on: configuration, messages, states, errors, units.

Nothing here does I/O beyond reading the packaged presets; torch is imported only inside
`shared.dflash` and by the training script of `shared.tiny_target`.
"""
