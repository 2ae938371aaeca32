"""The DFlash drafter as a plain torch library: model, mask, anchors, objective, export, decoding.

Import the module that holds what you need (`from shared.dflash.model import DFlashDraftModel`);
this package file imports nothing, so that reading a configuration does not load torch.
"""
