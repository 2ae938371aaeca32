"""`python -m control_plane.cli`: the same as the installed `dflash-mesh`."""

from control_plane.cli import main

main()
