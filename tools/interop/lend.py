"""A real worker on a free port of this machine.

    python3 lend.py PROTOCOL LIBRARIES CACHE

Says where, as one line, right before it begins: the shorter the port is free, the less likely another program takes it.
"""

import socket
import sys
from pathlib import Path

from peer import Peer

protocol, folder, cache = sys.argv[1:]
peer = Peer(protocol, Path(folder))
with socket.create_server(("127.0.0.1", 0)) as server:
    endpoint = f"127.0.0.1:{server.getsockname()[1]}"
print(endpoint, flush=True)
peer.serve(endpoint, cache)
