"""The command line `dflash-mesh`.

It speaks only HTTP to the control plane, except `up` (which is the control plane), `demo` (which
starts one), and the commands over local things: `doctor`, `hardware`, `target`, `data check`,
`eval`, `bench`. Results go to standard output, everything else to standard error.

Exit codes: 0 done; 1 failed; 2 wrong usage or configuration; 3 control plane not reachable;
4 refused in this state (409); 5 not found; 6 the watched run ended failed or blocked, or the
export has problems; 130 interrupted.
"""

from control_plane.cli.main import main

__all__ = ["main"]
