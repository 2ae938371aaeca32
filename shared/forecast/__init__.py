"""What a run will need before anything runs: storage, bandwidth, memory, time and cost.

`shapes` reads a target's config.json into the figures that matter, `gpus` holds the editable
table of accelerators, `estimate` combines them with the run's configuration.
"""

from shared.forecast.estimate import Forecast, forecast
from shared.forecast.gpus import Gpu, gpu_named, gpu_table
from shared.forecast.shapes import TargetShape

__all__ = ["Forecast", "Gpu", "TargetShape", "forecast", "gpu_named", "gpu_table"]
