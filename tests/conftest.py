"""For every test: one compute thread a process.

Small models gain nothing from more, and threads that wait for each other on a busy machine cost
many times what they save. Set before torch is imported; processes that tests start inherit it.
"""

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
