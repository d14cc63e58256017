"""A real worker.

    python3 lend.py PROTOCOL LIBRARIES ENDPOINT CACHE
"""

import sys
from pathlib import Path

from peer import Peer

protocol, folder, endpoint, cache = sys.argv[1:]
Peer(protocol, Path(folder)).serve(endpoint, cache)
