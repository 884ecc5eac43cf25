"""Everything that crosses a process boundary between MOSAIC's daemon, its clients and its workers."""

import os

# Read when grpc is imported, so set before anything here can import it. With it, grpc starts threads in every forked
# child; Popen(preexec_fn=…), which is how imageio starts ffmpeg, closes their descriptors, and they abort the child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

PROTOCOL_VERSION = 1
"""Version of the worker protocol: the RPCs a worker calls and the files it leaves."""

__version__ = "0.1.0"
