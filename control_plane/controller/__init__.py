"""What makes runs go: the registry of workers, the supervisor, and the jobs.

controller   what the HTTP routes call; starts, recovers and shuts down
registry     register, heartbeat, leave; applies the facts that heartbeats carry
run_task     one asyncio task for each active run: looks, decides, acts
supervisor   carries actions out: launch, kill, end, want
jobs         exports and evaluations, one of a kind at a time for each run
sightings    when workers were heard and seen to end, on the monotonic clock
decisions, lifecycle, measures, slots   pure: what to do next, and what the page says
keys, alerts, run_file                  link keys, the webhook, run.json
"""

from control_plane.controller.controller import Controller

__all__ = ["Controller"]
